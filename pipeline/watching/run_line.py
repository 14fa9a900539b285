"""One line about all ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divisible.planning.units import format_bytes
from pipeline.watching.status_files import RankStatus

# Values that the line has room for, and the beginnings that are left out of names.
_MOST_VALUES, _PREFIX = 3, "main/"


def line_of(ranks: Sequence[RankStatus]) -> str:
    """Returns a line about a run: progress, time left, numbers, speed, bubble, memory.

    Args:
        ranks: The states of the ranks, the first of which is rank 0.

    Example:
        >>> rank = RankStatus(
        ...     "job", 0, 1, 0, "a", 1, 0.0, 1200, {}, epoch=2.25, seconds_left=75.0,
        ...     values={"main/loss": 0.512}, memory=2**30, samples_per_second=1234.5)
        >>> line_of([rank])
        'epoch 2.25, step 1,200, 1:15 left, loss 0.512, 1,234 samples/s, memory 1.0 GiB'
    """
    first = ranks[0]
    parts = [] if first.epoch is None else [f"epoch {first.epoch:.2f}"]
    parts.append(f"step {first.n_steps:,}")
    # A narrow terminal cuts off what comes last.
    if first.seconds_left is not None:
        parts.append(f"{duration(first.seconds_left)} left")
    for name, value in list(first.values.items())[:_MOST_VALUES]:
        parts.append(f"{name.removeprefix(_PREFIX)} {number(value)}")
    if first.samples_per_second is not None:
        parts.append(f"{first.samples_per_second:,.0f} samples/s")
    if (share := bubble(ranks)) is not None:
        planned = first.planned_bubble
        besides = "" if planned is None else f" (plan {planned:.0%})"
        parts.append(f"bubble {share:.0%}{besides}")
    parts.append(f"memory {format_bytes(max(each.memory for each in ranks))}")
    line = ", ".join(parts)
    return f"{first.slow[0]} | {line}" if first.slow else line


def bubble(ranks: Sequence[RankStatus]) -> float | None:
    """Returns the share of the ranks' time in a step without computation.

    ``None`` if no rank has times yet.
    """
    known = [each.now for each in ranks if each.now is not None]
    longest = max((now.span for now in known), default=0.0)
    if longest <= 0:
        return None
    computing = float(np.mean([now.computing for now in known]))
    return min(1.0, max(0.0, 1.0 - computing / longest))


def number(value: float | None) -> str:
    """Returns a number with four digits; ``None`` stands for infinity or NaN.

    Example:
        >>> number(0.51234), number(None)
        ('0.5123', 'not finite')
    """
    return "not finite" if value is None else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Returns a duration as a clock shows it.

    Example:
        >>> duration(75), duration(7262), duration(200_000)
        ('1:15', '2:01:02', '2 days 7:33:20')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    before = f"{days} day{'s' * (days != 1)} " if days else ""
    if hours or days:
        return f"{before}{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"
