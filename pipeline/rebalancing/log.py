"""The log of :class:`~pipeline.Rebalance`: its checks, and who fell behind."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from divisible.planning.units import count, format_bytes, format_seconds
from pipeline.rebalancing.decisions import cause, to_others


class LoggedCheck(NamedTuple):
    """The record of a check: what was seen and done.

    Attributes:
        iteration: Of the trainer.
        seconds: Since the training began.
        hosts: Of the ranks of a pipeline.
        speeds: Speeds of these ranks, relative to the profile; ``None`` where nothing
            was known to compare ranks by.
        cuts: Those before the check.
        new_cuts: Those after it; ``None`` if nothing moved.
        step_seconds: Of a minibatch, by the stages' times.
        predicted_step_seconds: With the best cut that was found.
        reason: Why it was decided so.
        moved: Layers, bytes and seconds; ``None`` if nothing moved.
        went_back: Whether the move takes back the one before, and not what was found.
    """

    iteration: int
    seconds: float
    hosts: Sequence[str]
    speeds: Sequence[float] | None
    cuts: Sequence[int]
    new_cuts: Sequence[int] | None
    step_seconds: float
    predicted_step_seconds: float
    reason: str
    moved: dict[str, Any] | None
    went_back: bool = False

    @property
    def move_in_words(self) -> str:
        """The layers that moved at a check, and why."""
        moved = (
            f"{count(len(self.moved['layers']), 'layer')} moved, from the cuts"
            f" {self.cuts} to {self.new_cuts}: {format_bytes(self.moved['bytes'])} in"
            f" {format_seconds(self.moved['seconds'])}"
        )
        if self.went_back:
            return f"iteration {self.iteration}: {self.reason}. {moved}"
        return (
            f"iteration {self.iteration}: {cause(self.speeds, self.hosts)}; {moved}. A"
            f" step is predicted to take {format_seconds(self.predicted_step_seconds)}"
            f" instead of {format_seconds(self.step_seconds)}"
        )

    def append_to(self, path: str | os.PathLike) -> None:
        """Adds it to a log."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(self._asdict()) + "\n")


def read_log(path: str | os.PathLike) -> list[LoggedCheck]:
    """Returns the checks of a log, in their order.

    Raises:
        OSError: If it cannot be read.
        ValueError: If a line is no check; the message names the line.
    """
    checks = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                check = LoggedCheck(**json.loads(line))
                if check.speeds is not None:
                    np.asarray(check.speeds, np.float64).reshape(len(check.hosts))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{os.fspath(path)}: line {number} is no check of Rebalance:"
                    f" {error}"
                ) from error
            checks.append(check)
    return checks


class Straggler(NamedTuple):
    """A time in which a rank was slower than it can be.

    Attributes:
        rank: In its pipeline.
        host: The name of its host.
        first: The iteration of the first check that saw it.
        last: That of the last one.
        speed: The lowest speed meanwhile, relative to what the rank can do.
        n_moves: How often layers moved meanwhile.
    """

    rank: int
    host: str
    first: int
    last: int
    speed: float
    n_moves: int


def stragglers(
    checks: Sequence[LoggedCheck], threshold: float = 0.8
) -> list[Straggler]:
    """Returns which ranks fell behind, and when, in the order of time.

    Args:
        checks: The checks of one run; those without speeds say nothing.
        threshold (float): A rank falls behind below this share of what it can do, which
            is its highest speed but for a tenth of the checks.

    Example:
        >>> speeds = [1.0, 1.0, 0.5, 0.5, 1.0, 1.0]
        >>> checks = [
        ...     LoggedCheck(20 * i, i, "ab", [1.0, speed], [0, 2], None, 1, 1, "", None)
        ...     for i, speed in enumerate(speeds, 1)
        ... ]
        >>> stragglers(checks)
        [Straggler(rank=1, host='b', first=60, last=80, speed=0.5, n_moves=0)]
    """
    checks = [check for check in checks if check.speeds is not None]
    if not checks:
        return []
    speeds = np.array([check.speeds for check in checks], np.float64)
    relative = speeds / np.quantile(speeds, 0.9, axis=0)
    found = []
    for rank, column in enumerate(relative.T):
        runs = groupby(
            range(len(checks)), lambda i, column=column: column[i] < threshold
        )
        for is_behind, run in runs:
            if is_behind:
                places = list(run)
                first, last = checks[places[0]], checks[places[-1]]
                found.append(
                    Straggler(
                        rank,
                        first.hosts[rank],
                        first.iteration,
                        last.iteration,
                        float(column[places].min()),
                        sum(checks[i].moved is not None for i in places),
                    )
                )
    return sorted(found, key=lambda each: (each.first, each.rank))


class SlowRank(NamedTuple):
    """A rank that has been slower than the others in all of a run.

    Attributes:
        rank: Its number in its pipeline.
        host: The name of its host at the last check.
        speed: Its speed relative to the others, in the median of the checks.
    """

    rank: int
    host: str
    speed: float


def slow_ranks(checks: Sequence[LoggedCheck], threshold: float = 0.8) -> list[SlowRank]:
    """Returns which ranks are slower than others, whatever they can do.

    Args:
        checks: The checks of one run; those without speeds say nothing.
        threshold (float): A rank is slow that has less than this share of the speed of
            the others at most checks.

    Example:
        >>> checks = [
        ...     LoggedCheck(20, i, "abc", [1.0, 0.5, 1.0], [0, 2], None, 1, 1, "", None)
        ...     for i in range(3)
        ... ]
        >>> slow_ranks(checks)
        [SlowRank(rank=1, host='b', speed=0.5)]
    """
    known = [check for check in checks if check.speeds is not None]
    if not known:
        return []
    relative = np.median([to_others(check.speeds) for check in known], axis=0)
    return [
        SlowRank(rank, known[-1].hosts[rank], float(speed))
        for rank, speed in enumerate(relative)
        if speed < threshold
    ]
