"""Moves layers between the stages of a pipeline, between two minibatches.

::

    every rank     checks, and sends the names of the arrays it needs      nothing has
    owners         send sizes of these arrays; is there room for them?     changed if
    every rank     makes the new layers; they receive their values         one refuses
    ------------------------------------------------------------------------------------
    every rank     its stages get the layers, and its optimizers their state
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from divisible import Divisible, free_memory
from divisible.communication.attempts import on_all_ranks
from divisible.communication.communicators import (
    DuplicateAnnouncement,
    announcement,
    free_dropped,
)
from divisible.communication.errors import DisagreementError
from divisible.moved_layers import become, different_stage, new_layers
from divisible.optimizer_wrapper import each_within
from divisible.schedules.events import MOVE
from divisible.schedules.rank_program import Span
from divisible.streaming.mapped import MappedArray
from pipeline.pipeline import Pipeline
from pipeline.rebalancing import checking, other_pipelines, state
from pipeline.rebalancing.messages import (
    Parcel,
    exchange,
    files_for,
    total_bytes,
)
from pipeline.rebalancing.state import Want
from pipeline.snapshots.optimizers import OptimizersOfStages
from pipeline.start.agreement import Start, StartAnnouncement, agree
from pipeline.start.replicas import agree_on_replicas


class Moved(NamedTuple):
    """The layers that have moved, the same on all ranks.

    Attributes:
        layers: Positions of the layers that changed their stage.
        bytes: Bytes that all ranks together have sent for them.
        seconds: Seconds of the move on the slowest rank.
    """

    layers: tuple[int, ...]
    bytes: int
    seconds: float


class _Change(NamedTuple):
    """The change of one of this rank's stages.

    Attributes:
        stage: The stage with its present layers.
        layer_range: Range of its future layers.
        new: Positions of the layers that it gets.
        wants: Arrays that it needs for them.
    """

    stage: Divisible
    layer_range: tuple[int, int]
    new: list[int]
    wants: list[Want]


class _Task(NamedTuple):
    """The part of this rank in a move of layers.

    Attributes:
        model: The undivided model, made for the move.
        changes: Changes of this rank's stages that change, by number.
        optimizers: Optimizers of this rank's stages.
    """

    model: Divisible
    changes: Mapping[int, _Change]
    optimizers: OptimizersOfStages


class _Made(NamedTuple):
    """New stages that have not received their values yet.

    Attributes:
        stages: New stages of this rank, by number.
        files: Files for arrays that come from disks, by key.
    """

    stages: Mapping[int, Divisible]
    files: Mapping[str, MappedArray]


class _Fetched(NamedTuple):
    """Future layers of this rank, beside those in use.

    Attributes:
        stages: New stages of this rank, by number.
        arrays: All arrays received, by key.
        start: The future stages of all ranks.
        n_bytes: Bytes that all ranks have sent.
    """

    stages: Mapping[int, Divisible]
    arrays: Mapping[str, np.ndarray]
    start: Start
    n_bytes: int


def rebalance(
    pipeline: Pipeline,
    optimizer: Any,
    cuts: Sequence[int],
    build: Callable[[], Divisible],
) -> Moved:
    """Cuts the model of a running pipeline in other places, by moving layers.

    All ranks must call it, between two minibatches: after ``optimizer.update()``. The
    stages, the optimizers and the pipeline stay the same objects, with other layers; so
    do updaters, evaluators and snapshots, and the links that stay in their stage. A
    layer takes with it its parameters and persistent values, the optimizer's state,
    float32 master weights, and which parameters are frozen. Its random numbers depend
    on its position, not on its stage. So training goes on as if the layers had not
    moved, bit for bit. States that layers carry from one evaluation to the next
    (`divisible.carry_state`) are dropped. Other pipelines over the same layers refuse
    their calls from then on.

    Either all layers move or none does. ``build`` must make everything that a layer has
    besides parameters and persistent values. An example is a number or a link hook that
    a script gives to a stage's link later. The functions among the layers must compute
    the same; this is not checked.

    Args:
        pipeline (Pipeline): The pipeline.
        optimizer (chainer.Optimizer or list): Optimizers of this rank's stages, alike
            on all ranks.
        cuts (list of int): New cuts, as in :attr:`divisible.Plan.cuts`, for the same
            number of stages.
        build: Returns the undivided model, as the script has built it; in mixed
            precision before or after :func:`~mixed_precision.to_float16`. Only layers
            that come to this rank are made.

    Returns:
        Moved: The layers, bytes and seconds of the move.

    Raises:
        ValueError: If the cuts or ``build`` belong to another model, or a layer cannot
            be moved. Nothing was changed.
        RuntimeError: If a minibatch is under way. Nothing was changed.
        MemoryError: If there is no room for the new layers. Nothing was changed.
        DisagreementError: If another rank refuses, or the ranks' arguments or
            optimizers differ. Nothing was changed.
        StallError: If another rank does not answer in time.

    Example:
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> def build():
        ...     return Divisible(L.Linear(4, 8), L.Linear(8, 3))
        >>> stage = build().divide()
        >>> optimizer = chainer.optimizers.Adam().setup(stage)
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
        >>> rebalance(pipe, optimizer, [0, 2], build).layers
        ()
    """
    start = time.perf_counter()
    checking.check_not_within(pipeline)
    pipeline.internals.ranks.calls.check_usable()
    task, layers = _prepare(pipeline, optimizer, cuts, build)
    if not layers:
        return Moved((), 0, 0.0)
    fetched = _fetch(pipeline, task)
    before = state.optimizer_states(task.optimizers)
    stale = other_pipelines.with_layers_that_leave(pipeline, fetched.stages)
    pipeline.internals.ranks.calls.refusal = (
        "layers were moved in part only: make a new model, new optimizers and a new"
        " Pipeline, and load a snapshot"
    )
    for number, stage in fetched.stages.items():
        become(task.changes[number].stage, stage)
    for each in task.optimizers.of_stages:
        _prepare_optimizer(each)
    pipeline.internals.lay_out(fetched.start)
    state.load_optimizers(pipeline, optimizer, before, fetched.arrays)
    pipeline.internals.ranks.calls.refusal = None
    _mark(pipeline, layers, start)
    mine = time.perf_counter() - start, stale
    seconds, said = zip(*pipeline.internals.gather(mine, "rebalance"))
    other_pipelines.exclude(pipeline, said)
    return Moved(layers, fetched.n_bytes, max(seconds))


def _prepare(
    pipe: Pipeline, optimizer: Any, cuts: Sequence[int], build: Callable[[], Divisible]
) -> tuple[_Task, tuple[int, ...]]:
    """Checks everything; returns this rank's part, and the layers that move."""

    def check() -> tuple[_Task, list[int], list[list[str]]]:
        plan = checking.check_cuts(pipe, cuts)
        optimizers = OptimizersOfStages(optimizer, pipe)
        # Reasons that hold at any moment come first.
        words = checking.check_optimizers(pipe, optimizers)
        checking.check_moment(pipe, optimizers.of_stages)
        model = checking.built(build, pipe)
        checking.check_leaving(pipe, model, plan)
        return _Task(model, _changes(pipe, model, plan), optimizers), plan, words

    task, *mine = _on_all_ranks(pipe, check)
    said = pipe.internals.gather(mine, "rebalance")
    for rank, (theirs, _) in enumerate(said):
        if theirs != said[0][0]:
            raise DisagreementError(
                f"the cuts differ: rank 0 gives {said[0][0]}, and rank {rank} {theirs}"
            )
    checking.compare_optimizers([words for _, words in said])
    return task, tuple(_moving(pipe.cuts, said[0][0]))


def _on_all_ranks(pipe: Pipeline, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function on every rank; all ranks raise an error if one fails."""
    gather = functools.partial(pipe.internals.gather, call="rebalance")
    return on_all_ranks(gather, "cannot move layers", function, *arguments)


def _moving(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Returns the layers that change their stage.

    Example:
        >>> _moving([0, 2, 5], [0, 4, 5])
        [2, 3]
    """
    layers = np.arange(before[-1])
    stages = [np.searchsorted(cuts, layers, side="right") for cuts in (before, after)]
    return np.flatnonzero(stages[0] != stages[1]).tolist()


def _changes(
    pipe: Pipeline, model: Divisible, cuts: Sequence[int]
) -> dict[int, _Change]:
    """Returns the changes of this rank's stages that change, by number."""
    found = {}
    for number, stage in pipe.stages.items():
        layer_range = cuts[number], cuts[number + 1]
        if layer_range != stage.layer_range:
            new = new_layers(model, stage, layer_range)
            wants = state.wants(model.view(*layer_range), new, pipe.cuts)
            found[number] = _Change(stage, layer_range, new, wants)
    return found


def _fetch(pipe: Pipeline, task: _Task) -> _Fetched:
    """Makes the future stages; changes nothing that is in use."""
    ranks = pipe.internals.ranks
    mine = [want for change in task.changes.values() for want in change.wants]
    # On a grid, only the ranks of this replica's pipeline.
    row = [ranks.in_world(rank) for rank in range(ranks.size)]
    everyones = pipe.internals.gather(mine, "rebalance")
    outgoing, local = _sort_out(pipe, task.optimizers, [everyones[i] for i in row])
    parcels = {rank: Parcel.of(arrays) for rank, arrays in outgoing.items()}
    said = pipe.internals.gather(parcels, "rebalance")
    incoming = {
        rank: said[there][ranks.rank]
        for rank, there in enumerate(row)
        if ranks.rank in said[there]
    }
    coming = sum(parcel.n_bytes_in_memory for parcel in incoming.values())
    claims = free_memory.claims(coming + _bytes_to_make(task))
    refusal = free_memory.refusal(pipe.internals.gather(claims, "rebalance"))
    if refusal is not None:
        raise MemoryError(f"there is no room for the layers that would move: {refusal}")
    made, mine = _on_all_ranks(pipe, _make, pipe, task, incoming)
    start = _start(pipe, pipe.internals.gather(mine, "rebalance"))
    with ranks.calls.made("rebalance"):
        arrays = {**local, **exchange(ranks, outgoing, incoming, made.files)}
    _on_all_ranks(pipe, _load, made.stages, task.changes, arrays)
    return _Fetched(made.stages, arrays, start, total_bytes(said))


def _sort_out(
    pipe: Pipeline, optimizers: OptimizersOfStages, everyones: Sequence[Sequence[Want]]
) -> tuple[dict[int, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns the arrays that this rank sends to others, by rank, and to itself.

    Args:
        pipe: The pipeline.
        optimizers: Optimizers of this rank's stages.
        everyones: Arrays that each rank of the pipeline needs.
    """
    wanted = [
        tuple(want.prefix for want in wants if want.stage in pipe.stages)
        for wants in everyones
    ]
    here = state.give(pipe, optimizers, {each for some in wanted for each in some})
    given = {
        rank: {key: array for key, array in here.items() if key.startswith(prefixes)}
        for rank, prefixes in enumerate(wanted)
        if prefixes
    }
    local = given.pop(pipe.rank, {})
    return given, local


def _bytes_to_make(task: _Task) -> int:
    """Returns the bytes of new layers' parameters in memory, with their gradients."""
    return sum(
        2 * param.array.nbytes
        for change in task.changes.values()
        for position in change.new
        for param in task.model.view(position, position + 1).params(
            include_uninit=False
        )
        if not getattr(param, "is_streamed", False)
    )


def _make(
    pipe: Pipeline, task: _Task, incoming: Mapping[int, Parcel]
) -> tuple[_Made, tuple[StartAnnouncement, DuplicateAnnouncement]]:
    """Makes this rank's new stages and files; returns an announcement of its stages."""
    stages = {}
    for number, change in task.changes.items():
        stages[number] = different_stage(task.model, change.stage, change.layer_range)
        stages[number].to_device(change.stage.device)
    after = {**pipe.stages, **stages}
    loss = pipe.internals.loss
    of_loss = [p for link in loss.links.values() for p in link.params()]
    ordered = [after[number] for number in sorted(after)]
    mine = StartAnnouncement.of(ordered, of_loss, {}, loss.knows_count)
    return _Made(stages, files_for(incoming.values())), (mine, announcement())


def _start(
    pipe: Pipeline, said: Sequence[tuple[StartAnnouncement, DuplicateAnnouncement]]
) -> Start:
    """Returns the future stages of all ranks, or raises an error on every rank."""
    grid, words = pipe.internals.ranks.grid, [theirs for theirs, _ in said]
    start = agree(words) if grid is None else agree_on_replicas(words, grid)
    return start._replace(name=free_dropped([theirs for _, theirs in said]))


def _load(
    stages: Mapping[int, Divisible],
    changes: Mapping[int, _Change],
    arrays: Mapping[str, np.ndarray],
) -> None:
    for number, stage in stages.items():
        state.load_layers(stage, changes[number].new, arrays)


def _mark(pipe: Pipeline, layers: Sequence[int], start: float) -> None:
    """Adds the move to the end of the last minibatch's timeline."""
    words = f"{MOVE} {', '.join(map(str, layers))}"
    pipe.internals.record_after(Span(words, start, time.perf_counter()))


def _prepare_optimizer(optimizer: Any) -> None:
    """Gives update rules to the parameters that have none, as ``setup`` would."""
    *wrappers, optimizer = each_within(optimizer)
    for wrapper in wrappers:
        if hasattr(wrapper, "target_changed"):
            wrapper.target_changed()
    for param in optimizer.target.params():
        if param.update_rule is None:
            param.update_rule = optimizer.create_update_rule()
            if optimizer._use_fp32_update:
                param.update_rule.use_fp32_update()
