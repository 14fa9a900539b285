"""Abilities by measured times, and decisions to remap (section 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from divisible.number_lists import amount, numbers

Action = Literal["whole", "line"]

#: Number of the newest measurements that count in the paper, its L.
PAPER_LAST = 6

#: Times are alike up to this factor; the number of newest times that set the usual
#: time.
_ALIKE, _NEWEST = 1.5, 6


def ability(
    work: Sequence[float], seconds: Sequence[float], *, last: int | None = PAPER_LAST
) -> float:
    """Returns work per second: the slope of a line through the origin (Fig. 9).

    The slope is that of least squares, ``sum(w t) / sum(t t)``. Between two remappings
    every measurement has the same work, so a line that need not go through the origin
    would have the slope 0.

    Args:
        work: Work of each measurement, the oldest first.
        seconds: Seconds of each measurement.
        last: Number of the newest measurements that count, the paper's L; ``None`` for
            all.

    Raises:
        ValueError: If there are no measurements, the lengths differ, or a time is not
            positive.

    Example:
        >>> round(ability([100] * 3, [2.0, 2.1, 1.9]), 4)
        49.9168
        >>> ability([100] * 6, [2, 2, 2, 4, 4, 4]), ability([100] * 6, [4] * 6, last=3)
        (30.0, 25.0)
    """
    w, t = numbers("work", work), numbers("seconds", seconds)
    if w.shape != t.shape or w.ndim != 1 or not w.size:
        raise ValueError(
            f"work has {amount(w)} and seconds {amount(t)}: give a list of each, with"
            f" a number for every measurement, and one at least"
        )
    if last is not None:
        if last < 1:
            raise ValueError(f"last must be 1 or more, not {last}")
        w, t = w[-last:], t[-last:]
    if not ((t > 0) & np.isfinite(t)).all():
        raise ValueError(f"seconds must be positive and finite, not {t.tolist()}")
    return float(w @ t / (t @ t))


def of_now(seconds: Sequence[float]) -> np.ndarray:
    """Returns which measurements count: those like the newest ones.

    One long iteration, in which a machine did something else, would pull the line of
    least squares far more than its part. Where the load changed between two checks, one
    line does not fit both kinds of measurements. So only measurements within a factor
    of 1.5 of the median of the newest 6 count. If this holds for no more than half of
    the newest, there is no usual time, and all count.

    Args:
        seconds: Seconds of each measurement, the oldest first.

    Example:
        >>> of_now([2, 2.1, 20, 1.9]).tolist()
        [True, True, False, True]
        >>> of_now([2, 2, 2, 2, 4, 4, 4, 4, 4]).tolist()
        [False, False, False, False, True, True, True, True, True]
    """
    t = np.asarray(seconds, np.float64)
    newest = np.sort(t[-_NEWEST:])
    middle = newest[(len(newest) - 1) // 2]
    counts = (t <= _ALIKE * middle) & (t >= middle / _ALIKE)
    is_usual = 2 * counts[-_NEWEST:].sum() > len(newest)
    return counts if is_usual else np.ones(t.shape, bool)


def ratio(times: Sequence[float]) -> float:
    """Returns the shortest of some times over the longest: 1 is a perfect balance."""
    return min(times) / max(times)


def decide(
    times: Sequence[float],
    *,
    check: int,
    has_initial: bool,
    whole: float = 0.4,
    line: float = 0.8,
) -> Action | None:
    """Decides whether to remap, and how (Fig. 10).

    Args:
        times: t1 of each processor, in seconds.
        check: The number of the check, from 1 on.
        has_initial: Whether training began with estimates of the abilities.
        whole: Ratio of the shortest to the longest time below which everything is
            mapped again.
        line: Ratio below which lines move.

    Returns:
        ``'whole'``, ``'line'``, or ``None`` if the balance is good enough.

    Example:
        >>> decide([1, .79, .9], check=2, has_initial=False)
        'line'
        >>> decide([1, .9, .85], check=2, has_initial=False) is None
        True
        >>> decide([1, 1, 1], check=1, has_initial=False)
        'whole'
    """
    if check == 1 and not has_initial:
        return "whole"
    balance = ratio(times)
    if balance < whole:
        return "whole"
    return "line" if balance < line else None


def check_thresholds(whole: float, line: float) -> None:
    """Checks that thresholds are ratios, in ascending order.

    Raises:
        ValueError: If they are not.
    """
    if not 0 <= whole <= line <= 1:
        raise ValueError(
            f"whole={whole} and line={line}: ratios of the shortest to the longest time"
            f" must be 0 <= whole <= line <= 1"
        )


def efficiency(parallel_seconds: float, serial_seconds: Sequence[float]) -> float:
    """Returns the parallel efficiency of unequal processors: equation (11).

    The efficiency is the throughput of all together over the sum of the throughputs of
    each alone.

    Args:
        parallel_seconds: Seconds of a step on all processors.
        serial_seconds: Seconds of the same step on each processor alone.

    Raises:
        ValueError: If there are no times, or one is not positive.

    Example:
        >>> efficiency(1.0, [2.0, 4.0, 4.0])
        1.0
    """
    alone = [float(seconds) for seconds in serial_seconds]
    if not alone or min(alone) <= 0 or not parallel_seconds > 0:
        raise ValueError(
            f"times must be positive, not {parallel_seconds} together and {alone} alone"
        )
    return 1 / parallel_seconds / sum(1 / seconds for seconds in alone)
