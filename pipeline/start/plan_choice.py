"""Measures layers, and chooses a plan: ``plan='auto'``.

::

    divisible run --plan plan.json      that plan, if it fits
    directory has a plan.json           that plan, if it fits: a resumed run
    otherwise                           measures the layers on this rank, in the whole
                                        minibatch, a quarter and a sixteenth of it;
                                        plans for all ranks, first without a disk;
                                        writes plan.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible import (
    Divisible,
    Machine,
    MemoryLimitError,
    Plan,
    Profile,
    best_plan,
    profile,
)
from divisible.dtypes import floating_dtypes
from divisible.minibatch import as_arrays
from divisible.planning.cut_plan import WAYS
from divisible.planning.message_plan import message_lines
from divisible.planning.retained_arrays import FULL
from divisible.planning.search import NoConfigurationError
from divisible.planning.units import count, format_seconds
from divisible.schedules.automatic import AUTO as AUTO_SCHEDULE
from divisible.schedules.catalogue import TRIED_BY_DEFAULT
from divisible.schedules.schedule import Schedule
from divisible.streaming import measure_disk
from divisible.user_warnings import warn_user
from mixed_precision import MixedPrecision, float32_loss
from pipeline.stages.labels import takes_outputs_alone
from pipeline.start.plans import Given

#: Value of ``plan`` for a plan that is to be chosen.
AUTO = "auto"
#: Environment variable with the file of a plan, which ``divisible run --plan`` sets.
VARIABLE = "DIVISIBLE_PLAN"
#: Mark for the number of ranks in the name of such a file.
RANKS = "{ranks}"
#: Name of a plan's file in a directory of snapshots.
PLAN_NAME = "plan.json"
# Numbers of parts of the minibatch that is measured.
_PARTS = 1, 4, 16
_REPEAT = 3
# Bytes of the file with which the disk is measured.
_DISK_BYTES = 64 * 2**20


class Known(NamedTuple):
    """A plan that exists already, or the reason why one must be made.

    Attributes:
        plan: The plan; ``None`` if there is none that fits.
        words: Text about the origin of the plan, or why a file is not used.
    """

    plan: Plan | None
    words: str = ""


def known_plan(
    model: Divisible,
    n_ranks: int,
    directory: str | os.PathLike | None,
    environ: Any = os.environ,
) -> Known:
    """Returns the plan of the command line, or of an earlier run.

    Args:
        model: The undivided model.
        n_ranks: Number of ranks.
        directory: Directory of the run's snapshots; ``None`` for none.
        environ: Environment variables.

    Raises:
        OSError, ValueError: If the file of the command line is not a plan for this
            model and this number of ranks.
        ValueError: If a new plan could not be saved in the directory.
    """
    if path := environ.get(VARIABLE):
        path = path.replace(RANKS, str(n_ranks))
        plan = Plan.load(path)
        plan.check(model, n_ranks)
        return Known(plan, f"{path}, by divisible run --plan")
    if directory is None:
        return Known(None)
    path = Path(directory) / PLAN_NAME
    try:
        plan = Plan.load(path)
        plan.check(model, n_ranks)
    except FileNotFoundError:
        found = Known(None)
    except (OSError, ValueError) as error:
        found = Known(None, f"not as in {path}: {error}")
    else:
        return Known(plan, os.fspath(path))
    _make_directory(path.parent)
    return found


def _make_directory(path: Path) -> None:
    """Makes a directory for a plan, before layers are measured rather than after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ValueError(
            f"directory={os.fspath(path)!r} cannot have the plan's file:"
            f" {error.strerror}. Give a directory that can be made and written"
        ) from error


class Wish(NamedTuple):
    """The task of choosing a plan.

    Attributes:
        model: The undivided model.
        x: Inputs of a first minibatch.
        t: Targets of this minibatch; ``None`` if the loss takes only outputs.
        lossfun: The loss, as a pipeline takes it.
        given: Arguments that the plan must keep.
        machine: Memory, speeds and links of the ranks.
        replicas: Numbers of replicas to try.
        disk_directory: The directory on a disk; ``None`` for the usual one.
        overlaps: Whether minibatches may overlap.
    """

    model: Divisible
    x: Any
    t: Any
    lossfun: Callable
    given: Given
    machine: Machine
    replicas: Sequence[int]
    disk_directory: str | os.PathLike | None
    overlaps: bool = True


class Chosen(NamedTuple):
    """A plan, and lines of text about why it was chosen."""

    plan: Plan
    lines: tuple[str, ...]


def choose(wish: Wish, goes_on: Callable[[], None]) -> Chosen:
    """Measures the layers, and returns the plan that is fastest by simulation.

    Args:
        wish: The task.
        goes_on: Called often while this works.

    Raises:
        TypeError, ValueError: If ``x`` or ``t`` cannot be trained on, or the machine
            has another number of ranks.
        MemoryLimitError: If no plan fits in memory, even with a disk.
    """
    if wish.x is None:
        raise TypeError(
            "plan='auto' needs a first minibatch on rank 0, to measure the layers with:"
            " give x and t, or the file of a plan"
        )
    if wish.t is None and not takes_outputs_alone(wish.lossfun):
        raise TypeError(
            "plan='auto' needs t on rank 0, as lossfun takes targets: give t beside x"
        )
    begun = time.perf_counter()
    profiles = _measured(wish, goes_on)
    seconds = time.perf_counter() - begun
    plans, disk_words = _planned(wish, profiles, goes_on)
    best = min(plans, key=lambda plan: (float(f"{plan.step_seconds:.4g}"), _size(plan)))
    *others, last = sorted((each.n_samples for each in profiles), reverse=True)
    sizes = " and ".join(filter(None, [", ".join(map(str, others)), str(last)]))
    lines = (
        f"plan='auto': rank 0 measured {count(len(wish.model), 'layer')} in"
        f" microbatches of {sizes} samples, in {format_seconds(seconds)}, to plan for"
        f" {best.conditions}{disk_words}",
        f"chosen: {best.headline}",
        *message_lines(best.messages),
        f"because {_reasons(best, plans, profiles[-1])}",
    )
    return Chosen(best, lines)


def save(chosen: Chosen, directory: str | os.PathLike | None) -> Chosen:
    """Writes a plan into the directory of a run's snapshots; adds a line about it."""
    if directory is None:
        words = "not saved: with directory= a resumed run takes the same plan"
    else:
        path = Path(directory) / PLAN_NAME
        chosen.plan.save(path)
        words = f"saved as {path}, from which a resumed run takes it"
    return chosen._replace(lines=(*chosen.lines, words))


def _measured(wish: Wish, goes_on: Callable[[], None]) -> list[Profile]:
    """Returns profiles of the minibatch and of parts of it, the largest last."""
    x = as_arrays("x", wish.x)
    t = None if wish.t is None else as_arrays("t", wish.t)
    n = len(x[0])
    sizes = sorted({-(-n // parts) for parts in _PARTS})
    lossfun = float32_loss(functools.partial(_loss_alone, wish.lossfun))
    with _warnings_once():
        found = [
            profile(
                wish.model,
                tuple(array[:size] for array in x),
                None if t is None else tuple(array[:size] for array in t),
                lossfun,
                # The optimizer is not known yet; few need more memory than this one.
                optimizer=_largest_optimizer(wish.model),
                repeat=_REPEAT,
                progress=lambda *_: goes_on(),
            )
            for size in sizes
        ]
    arrays = [param.array for param in wish.model.params(include_uninit=False)]
    may_stream = all(getattr(array, "is_deferred", False) for array in arrays)
    return found if may_stream else [*map(_without_streaming, found)]


@contextlib.contextmanager
def _warnings_once() -> Iterator[None]:
    """Shows one warning of each category, though layers are measured repeatedly."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for category, text in {each.category: str(each.message) for each in caught}.items():
        warn_user(text, category)


def _without_streaming(measured: Profile) -> Profile:
    """Returns a profile of layers that are in memory, and so must stay there."""
    layers = [
        dataclasses.replace(layer, streamable_bytes=0, gathered_bytes=0)
        for layer in measured.layers
    ]
    return dataclasses.replace(measured, layers=layers)


def _loss_alone(lossfun: Callable, *values: Any) -> Any:
    """Returns the loss, without the number of samples that count."""
    loss = lossfun(*values)
    return loss[0] if isinstance(loss, tuple) else loss


def _largest_optimizer(model: Divisible) -> Any:
    adam = chainer.optimizers.Adam()
    is_narrow = np.dtype(np.float16) in floating_dtypes(model)
    return MixedPrecision(adam) if is_narrow else adam


def _planned(
    wish: Wish, profiles: Sequence[Profile], goes_on: Callable[[], None]
) -> tuple[list[Plan], str]:
    """Returns the best plan for each number of replicas, and a text about disks."""
    plans, lacking = _best_plans(wish, profiles, wish.machine, goes_on)
    if plans or wish.model.device.xp is not np or lacking is None:
        if not plans:
            raise lacking or ValueError(
                f"no plan uses all of {count(wish.machine.ranks, 'rank')} for"
                f" {count(len(wish.model), 'layer')}, a minibatch of"
                f" {profiles[-1].n_samples} samples and what is given besides: start"
                f" fewer ranks, or give less"
            )
        return plans, ""
    machine = wish.machine
    if machine.disk is None:
        disk = measure_disk(wish.disk_directory, n_bytes=_DISK_BYTES)
        machine = dataclasses.replace(machine, disk=disk)
    plans, still_lacking = _best_plans(wish, profiles, machine, goes_on)
    if not plans:
        raise still_lacking
    return plans, ", as memory alone does not suffice"


def _best_plans(
    wish: Wish,
    profiles: Sequence[Profile],
    machine: Machine,
    goes_on: Callable[[], None],
) -> tuple[list[Plan], MemoryLimitError | None]:
    """Returns the best plan for each number of replicas, or an error if none fits."""
    found, lacking = [], None
    for replicas in wish.replicas:
        n_ranks = machine.ranks // replicas
        if n_ranks > len(profiles[0]) or replicas > profiles[-1].n_samples:
            continue
        try:
            plan = best_plan(
                profiles,
                machine,
                pipeline_ranks=[n_ranks],
                replicas=(replicas, replicas),
                overlap_minibatches=wish.overlaps,
                progress=lambda *_: goes_on(),
                **_constraints(wish.given),
            )
        except NoConfigurationError:
            # Such as fewer samples in a replica than microbatches that are given.
            continue
        except MemoryLimitError as error:
            lacking = lacking or error
        else:
            found.append(plan)
    return found, lacking


def _constraints(given: Given) -> dict[str, Any]:
    """Returns arguments for the search, so that plans keep the given ones."""
    schedule = given.schedule
    if isinstance(schedule, Schedule):
        schedule = schedule.name
    schedules = TRIED_BY_DEFAULT
    if schedule is not None and schedule != AUTO_SCHEDULE:
        schedules = (schedule,)
    recompute, m = given.recompute, given.n_microbatches
    if not isinstance(recompute, (str, type(None))):
        # The layers that are given, and no other ones.
        recompute = "never"
    groups = given.weight_groups
    return {
        "schedules": schedules,
        "recompute": WAYS if recompute is None else (recompute,),
        "microbatches": None if m is None else [m],
        "weight_groups": [groups] if isinstance(groups, int) else None,
        "hold_dtypes": (given.hold_dtype or FULL,),
        "message_dtypes": () if given.message_dtype is None else [given.message_dtype],
    }


def _size(plan: Plan) -> tuple[int, int]:
    return plan.replicas, plan.stages_per_rank


def _reasons(best: Plan, plans: Sequence[Plan], whole: Profile) -> str:
    """Returns a text about why a plan was chosen."""
    words = []
    if best.n_ranks > 1:
        times = whole.seconds / best.step_seconds
        is_short = best.streamed or "disk" in best.hold_in
        alone = "one rank with memory for all of it" if is_short else "one rank"
        words.append(f"{alone} would take {times:.2f} times as long")
    words += [
        f"{count(plan.replicas, 'replica')} of {count(plan.n_stages, 'stage')} would"
        f" take {plan.step_seconds / best.step_seconds:.2f} times as long"
        for plan in plans
        if plan is not best
    ]
    for other in best.alternatives[:1]:
        words.append(f"the next best, {other.name}, is {other.reason}")
    return "; ".join(words) or "nothing else fits"
