"""The log of :class:`~pipeline.Rebalance`: its checks, and slow ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from divisible.planning.units import count, format_bytes, format_seconds
from divisible.records import (
    plain_integer,
    plain_number,
    plain_text,
    read_lines,
    shown,
)
from divisible.side_files import append_line
from pipeline.rebalancing.decisions import cause, to_others

_REMEDY = "Leave the line out"


class LoggedCheck(NamedTuple):
    """The record of a check: measurements and decision.

    Attributes:
        iteration: Iteration of the trainer.
        seconds: Seconds since the training began.
        hosts: Host of each rank of a pipeline.
        speeds: Speeds of these ranks, relative to the profile; ``None`` if nothing was
            known to compare ranks by.
        cuts: Cuts before the check.
        new_cuts: Cuts after the check; ``None`` if nothing moved.
        step_seconds: Seconds of a minibatch, simulated from the stages' times.
        predicted_step_seconds: Seconds of a minibatch with the best cuts found.
        reason: Text about why layers moved, or did not.
        moved: The layers, bytes and seconds of a move; ``None`` if nothing moved.
        went_back: Whether the move reversed the one before.
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
        """A text about the layers that moved at a check, and why."""
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
        """Adds the check to a log.

        Raises:
            OSError: If the log cannot be written. Later checks can still be added.
        """
        append_line(path, json.dumps(self._asdict()))


def read_log(path: str | os.PathLike) -> list[LoggedCheck]:
    """Returns the checks of a log, in their order.

    Broken lines are left out, and a warning has their number.

    Raises:
        OSError: If the log cannot be read.
        ValueError: If no line is a check; the message has the fault of the first line.
    """
    return read_lines(path, "a check of Rebalance", _check_of)


def _check_of(fields: dict[str, Any]) -> LoggedCheck:
    """Returns the check in a line of a log, once each field has been checked."""
    missing = set(LoggedCheck._fields) - set(LoggedCheck._field_defaults) - set(fields)
    unknown = set(fields) - set(LoggedCheck._fields)
    if missing:
        raise ValueError(f"the field {min(missing)} is missing")
    if unknown:
        raise ValueError(f"there is no field {shown(min(unknown))}")
    check = LoggedCheck(**fields)
    plain_integer("iteration", check.iteration)
    for name in ("seconds", "step_seconds", "predicted_step_seconds"):
        plain_number(name, getattr(check, name), _REMEDY)
    for host in _listed("hosts", check.hosts):
        plain_text("hosts", host)
    if check.speeds is not None:
        _check_speeds(check)
    for name in ("cuts", "new_cuts"):
        cuts = getattr(check, name)
        if name == "cuts" or cuts is not None:
            for position in _listed(name, cuts):
                plain_integer(name, position)
    plain_text("reason", check.reason)
    if check.moved is not None:
        _check_move(check.moved)
    if not isinstance(check.went_back, bool):
        raise TypeError(
            f"went_back must be true or false, not {shown(check.went_back)}"
        )
    return check


def _check_speeds(check: LoggedCheck) -> None:
    for speed in _listed("speeds", check.speeds):
        if not plain_number("speeds", speed, _REMEDY) > 0:
            raise ValueError(f"speeds must be positive, not {shown(speed)}")
    if len(check.speeds) != len(check.hosts):
        raise ValueError(
            f"there are {count(len(check.speeds), 'speed')} for"
            f" {count(len(check.hosts), 'host')}"
        )


def _check_move(moved: Any) -> None:
    if not isinstance(moved, dict) or not {"layers", "bytes", "seconds"} <= set(moved):
        raise ValueError(
            f"moved must have layers, bytes and seconds, not {shown(moved)}"
        )
    _listed("layers", moved["layers"])
    plain_integer("bytes", moved["bytes"])
    plain_number("seconds", moved["seconds"], _REMEDY)


def _listed(name: str, value: Any) -> list:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, not {shown(value)}")
    return value


class Straggler(NamedTuple):
    """A time in which a rank was slower than usual for it.

    Attributes:
        rank: Number of the rank in its pipeline.
        host: Name of its host.
        first: Iteration of the first check in that time.
        last: Iteration of the last check in that time.
        speed: Lowest speed in that time, relative to the rank's usual one.
        n_moves: Number of moves of layers in that time.
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
    """Returns the ranks that fell behind, and when, in the order of time.

    Args:
        checks: Checks of a log; checks without speeds are left out.
        threshold (float): A rank falls behind below this share of its usual speed,
            which is exceeded at a tenth of the checks.

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
    # A run that is resumed with another number of ranks adds to the same log.
    runs = groupby(checks, lambda check: len(check.hosts))
    found = [each for _, run in runs for each in _of_one_run(list(run), threshold)]
    return sorted(found, key=lambda each: (each.first, each.rank))


def _of_one_run(checks: Sequence[LoggedCheck], threshold: float) -> list[Straggler]:
    """Returns the stragglers of checks that have the same number of ranks."""
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
    return found


class SlowRank(NamedTuple):
    """A rank that was slower than the others during all of a run.

    Attributes:
        rank: Number of the rank in its pipeline.
        host: Name of its host at the last check.
        speed: Median over the checks of its speed, relative to the others.
    """

    rank: int
    host: str
    speed: float


def slow_ranks(checks: Sequence[LoggedCheck], threshold: float = 0.8) -> list[SlowRank]:
    """Returns the ranks that are slower than others, whatever their usual speed.

    Args:
        checks: Checks of a log. Checks without speeds, or with another number of ranks
            than the last check, are left out.
        threshold (float): A rank is slow if its median speed is below this share of the
            others' speed.

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
    n_ranks = len(known[-1].hosts)
    known = [check for check in known if len(check.hosts) == n_ranks]
    relative = np.median([to_others(check.speeds) for check in known], axis=0)
    return [
        SlowRank(rank, known[-1].hosts[rank], float(speed))
        for rank, speed in enumerate(relative)
        if speed < threshold
    ]
