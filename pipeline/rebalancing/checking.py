"""Refuses bad input on every rank before a layer moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable

import chainer

from data_parallel.replica_agreement import description
from divisible import Divisible, Plan, deferred_init
from divisible.communication.errors import DisagreementError
from divisible.moved_layers import new_layers
from divisible.optimizer_hooks import Hooks
from divisible.optimizer_wrapper import has_skipped
from divisible.planning.profile import check_layers
from divisible.undivided import first_difference
from mixed_precision.layer_types import LayerTypes
from mixed_precision.typed_links import Typed
from pipeline.pipeline import Pipeline
from pipeline.rebalancing.state import OUTPUT_DTYPE
from pipeline.snapshots.optimizers import OptimizersOfStages, covers
from pipeline.stages.stage_groups import check_groups

# Types of a link's attributes, besides arrays, that may change what it computes.
_PLAIN = (bool, int, float, str)


def check_cuts(pipeline: Pipeline, cuts: Sequence[int]) -> list[int]:
    """Returns cuts as a list, if they suit this pipeline's model and stages.

    Raises:
        ValueError: If the numbers of stages or layers differ, or a layer that carries a
            state would be in a stage with groups of microbatches.
    """
    plan, now = Plan(cuts), Plan(pipeline.cuts)
    if (plan.n_stages, plan.n_layers) != (now.n_stages, now.n_layers):
        raise ValueError(
            f"the cuts {plan.cuts} make {plan.n_stages} stages of {plan.n_layers}"
            f" layers, but this pipeline has {now.n_stages} of {now.n_layers}: the cuts"
            f" {now.cuts}"
        )
    (stage, *_) = pipeline.stages.values()
    check_groups(pipeline.schedule, plan.cuts, stage.carried_states)
    return list(plan.cuts)


def check_moment(pipeline: Pipeline, optimizers: Iterable[Any]) -> None:
    """Refuses to move layers, except between two minibatches.

    Raises:
        RuntimeError: If a minibatch is under way, if its gradients wait for an update,
            or if the schedule is still being chosen.
    """
    if pipeline.internals.trial is not None:
        raise RuntimeError(
            "the first minibatches choose the schedule 'auto', or the groups of weight"
            " gradients 'auto': move layers after them"
        )
    if pipeline.internals.step.updates.are_awaited and not any(
        map(has_skipped, optimizers)
    ):
        raise RuntimeError(
            f"the gradients of minibatch {pipeline.n_steps} have not been used: layers"
            f" move between two minibatches, after optimizer.update()"
        )


def check_not_within(pipeline: Pipeline) -> None:
    """Refuses a call from within another one, while other ranks compute.

    Raises:
        RuntimeError: If another call is running.
    """
    calls = pipeline.internals.ranks.calls
    if calls.is_within:
        raise RuntimeError(
            f"layers move between two minibatches, but rank"
            f" {pipeline.internals.ranks.world.rank} is in a call of {calls.call}"
        )


def built(build: Callable[[], Divisible], pipeline: Pipeline) -> Divisible:
    """Returns the undivided model, without the arrays of its layers.

    Raises:
        TypeError: If ``build`` returns something else.
        ValueError: If it is not the pipeline's model.
    """
    # A model can be called as well, so being callable does not suffice.
    if not callable(build) or isinstance(build, chainer.Link):
        raise TypeError(
            f"build must be a function that makes the model, not {type(build).__name__}"
        )
    with deferred_init():
        model = build()
    if not isinstance(model, Divisible) or model.is_stage:
        raise TypeError(
            f"build must return the undivided model, a Divisible, not"
            f" {'a stage' if isinstance(model, Divisible) else type(model).__name__}"
        )
    for stage in pipeline.stages.values():
        check_layers("the pipeline", stage.model_layers, "build()", model.model_layers)
        if (name := first_difference(stage, model)) is not None:
            raise ValueError(
                f"build() makes another model: its {name} are {getattr(model, name)},"
                f" but those of the pipeline's are {getattr(stage, name)}"
            )
        _check_parameters(stage, model)
    return model


def _check_parameters(stage: Divisible, model: Divisible) -> None:
    """Refuses a model whose parameters or marks differ from those of a stage."""
    start, end = stage.layer_range
    part = model.view(start, end)
    if part.recomputed != stage.recomputed:
        raise ValueError(
            f"build() marks other layers from {start} to {end - 1} to be recomputed"
            f" than those of the pipeline are"
        )
    theirs = dict(part.namedparams())
    for path, param in stage.namedparams():
        if not param.is_initialized:
            raise ValueError(
                f"{path} has no shape before the first minibatch: move layers after it"
            )
        made = theirs.pop(path, None)
        if made is None:
            raise ValueError(f"build() makes no {path}, which the pipeline has")
        if not made.is_initialized:
            # This layer gets its size from the arrays that it receives.
            continue
        # Stages may have been cast, as by to_float16.
        if (made.shape, made.dtype.kind) != (param.shape, param.dtype.kind):
            raise ValueError(
                f"build() makes {path} of {made.shape} and {made.dtype}, but it is"
                f" {param.shape} and {param.dtype}; where channels were taken away,"
                f" Compress.prepare gives what it makes their sizes"
            )
    if theirs:
        raise ValueError(
            f"build() makes {', '.join(sorted(theirs))}, which the pipeline has not"
        )


def check_leaving(pipeline: Pipeline, model: Divisible, cuts: Sequence[int]) -> None:
    """Refuses to move layers with properties that messages cannot carry.

    Raises:
        ValueError: If a layer has other hooks or settings than ``build`` gives it, or a
            parameter without an update rule, which it would get after a move.
    """
    for number, stage in pipeline.stages.items():
        start, end = stage.layer_range
        staying = {*range(cuts[number], cuts[number + 1])} - {
            *new_layers(model, stage, (cuts[number], cuts[number + 1]))
        }
        for position in sorted({*range(start, end)} - staying):
            there = stage.view(position, position + 1)
            made = dict(model.view(position, position + 1).namedlinks())
            for path, link in there.namedlinks():
                if link is there:
                    continue
                here, fresh = _hooks(link), _hooks(made[path])
                if here != fresh:
                    raise ValueError(
                        f"{path} has the hooks {', '.join(here) or 'none'}, but build()"
                        f" gives it {', '.join(fresh) or 'none'}: add them there"
                    )
                _check_settings(path, link, made[path])
                _check_types(path, link, made[path])
                _check_values(path, link, made[path])
            for path, param in there.namedparams():
                if param.update_rule is None:
                    raise ValueError(
                        f"{path} has no update rule, and would get one where it moves:"
                        f" freeze it by disable_update() instead"
                    )
                if any(Hooks.of(param.update_rule)):
                    raise ValueError(
                        f"the update rule of {path} has hooks of its own, which cannot"
                        f" be moved: add them to the optimizer"
                    )


def _check_values(path: str, here: chainer.Link, made: chainer.Link) -> None:
    """Refuses a link with persistent values that ``build`` does not give it."""
    more = sorted(here._persistent - made._persistent)
    if more:
        raise ValueError(
            f"{path} has {', '.join(more)}, which build() does not give it, and would"
            f" compute without where it moves: add them there, those of layers with few"
            f" bits by CompressionPlan.prepare"
        )


def _check_settings(path: str, here: chainer.Link, made: chainer.Link) -> None:
    """Refuses a link whose numbers and texts differ from those that it is made with."""
    known = {*here._params, *here._persistent, "name", OUTPUT_DTYPE}
    for name, value in vars(here).items():
        if name in known or name.startswith("_"):
            continue
        fresh = getattr(made, name, None)
        # The first call may replace None.
        plain = isinstance(value, _PLAIN) and isinstance(fresh, _PLAIN)
        if plain and value != fresh:
            raise ValueError(
                f"{path}.{name} is {value!r}, but build() makes it {fresh!r}, as it"
                f" would be after a move: set it there, or make it a persistent value"
            )


def _check_types(path: str, here: chainer.Link, made: chainer.Link) -> None:
    """Refuses a link that ``to_float16`` gave types, and ``build`` does not."""
    if _kept_types(here) != _kept_types(made):
        raise ValueError(
            f"{path} has types of its own, which build() does not give it: call"
            f" to_float16 there, with the same keep"
        )


def _kept_types(link: chainer.Link) -> LayerTypes | None:
    return link.types if isinstance(link, Typed) and link.is_kept else None


def _hooks(link: chainer.Link) -> list[str]:
    hooks = link._local_link_hooks or {}
    return [type(hook).__name__ for hook in hooks.values()]


def check_optimizers(
    pipeline: Pipeline, optimizers: OptimizersOfStages
) -> list[list[str]]:
    """Returns descriptions of the optimizers of this rank's stages.

    Raises:
        ValueError: If a stage has no optimizer or several, or gradients are under way.
    """
    for stage in pipeline.stages.values():
        ours = [each for each in optimizers.of_stages if covers(each, stage)]
        if len(ours) != 1:
            start, end = stage.layer_range
            raise ValueError(
                f"{len(ours)} optimizers are set up with the layers {start} to"
                f" {end - 1} of rank {pipeline.rank}: give one for each of its stages,"
                f" or one for all"
            )
    for each in optimizers.of_stages:
        if getattr(each, "double_buffering", False):
            raise ValueError(
                "with double_buffering gradients of layers are under way between two"
                " minibatches: move layers without it"
            )
    return [description(each, []) for each in optimizers.of_stages]


def compare_optimizers(said: Sequence[Sequence[Sequence[str]]]) -> None:
    """Refuses optimizers that would treat a layer differently after a move.

    Args:
        said: Descriptions of each rank's optimizers.

    Raises:
        DisagreementError: If two optimizers differ.
    """
    first = said[0][0]
    for rank, theirs in enumerate(said):
        for lines in theirs:
            if lines != first:
                here, there = (
                    sorted(set(first) - set(lines)),
                    sorted(set(lines) - set(first)),
                )
                raise DisagreementError(
                    f"layers cannot move between optimizers that differ: rank 0 has"
                    f" {'; '.join(here) or 'nothing more'}, and rank {rank}"
                    f" {'; '.join(there) or 'nothing more'}"
                )
