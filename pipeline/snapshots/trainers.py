"""The parts of a trainer that extensions need to save and resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from divisible.planning.units import count
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.files import Snapshot


def pipeline_of(trainer: Any, given: BetweenSteps | None, what: str) -> BetweenSteps:
    """Returns the pipeline that a trainer trains.

    Args:
        trainer (chainer.training.Trainer): The trainer.
        given: The pipeline that the script gave, if any.
        what: Name of the extension's function.

    Raises:
        TypeError: If there is none.
    """
    pipe = given or getattr(trainer.updater, "pipeline", None)
    if not isinstance(pipe, BetweenSteps):
        raise TypeError(
            f"{type(trainer.updater).__name__} has no attribute 'pipeline': give"
            f" {what}(pipeline=...) the Pipeline"
        )
    return pipe


def optimizers_of(trainer: Any) -> list[Any]:
    """Returns all optimizers of a trainer."""
    return list(trainer.updater.get_all_optimizers().values())


def refuse_late_gradients(pipe: BetweenSteps, what: str) -> None:
    """Refuses a schedule whose gradients wait between two steps.

    Args:
        pipe: The pipeline.
        what: Name of the extension's function.

    Raises:
        ValueError: If the schedule has two weight versions.
    """
    if pipe.schedule.weight_versions > 1:
        raise ValueError(
            f"{what}() does not go together with schedule {pipe.schedule.name!r},"
            f" whose gradients come one step late and wait between two steps. Call"
            f" save_snapshot() where nothing waits, after pipe.flush() and"
            f" optimizer.update(), or take another schedule"
        )


@contextlib.contextmanager
def calling_others(extension: Any, trainer: Any) -> Iterator[None]:
    """Calls the ``finalize`` of later extensions if a block raises an error.

    The trainer would skip them then. But an iterator, for example, must end its
    processes.

    Args:
        extension: The extension whose ``finalize`` is the block.
        trainer (chainer.training.Trainer): The trainer.
    """
    with contextlib.ExitStack() as others:
        for finalize in reversed(_finalized_later(extension, trainer)):
            others.callback(finalize)
        yield
        others.pop_all()


def _finalized_later(extension: Any, trainer: Any) -> list[Any]:
    """Returns the functions that the trainer calls after an extension's, in order."""
    entries = sorted(
        trainer._extensions.values(), key=lambda each: each.priority, reverse=True
    )
    extensions = [each.extension for each in entries]
    later = extensions[extensions.index(extension) + 1 :]
    found = [getattr(each, "finalize", None) for each in later]
    return [each for each in (*found, trainer.updater.finalize) if each]


def resumed(found: Snapshot, trainer: Any, pipe: BetweenSteps, where: Any) -> str:
    """Returns a line about the snapshot that a run was resumed from.

    Args:
        found: The snapshot.
        trainer (chainer.training.Trainer): The trainer, which has loaded it.
        pipe: The pipeline.
        where: Place of the snapshot, in words.
    """
    n_saved, n_now = found.n_ranks * found.n_replicas, pipe.internals.ranks.world.size
    return (
        f"resumed from {where}: iteration {trainer.updater.iteration}, saved"
        f" {_age(time.time() - found.time)} ago on {count(n_saved, 'rank')}; the"
        f" training goes on with {count(n_now, 'rank')}"
    )


def _age(seconds: float) -> str:
    """Returns a duration in a unit of which there are only a few.

    Example:
        >>> _age(-3.0), _age(100), _age(600), _age(10_000), _age(400_000)
        ('0 seconds', '100 seconds', '10 minutes', '167 minutes', '5 days')
    """
    # Clocks of hosts differ, so the duration may be negative.
    value, unit = max(0.0, seconds), "second"
    for size, larger in ((60, "minute"), (60, "hour"), (24, "day")):
        if value < 3 * size:
            break
        value, unit = value / size, larger
    return count(round(value), unit)
