"""The rounds of a compression by trying: how far each goes, after those before.

A round's *way* is a number from 0, for the dense model, to 1, for the smallest model
that is wanted. Its scale is logarithmic in bytes::

    way  0 ------- 1/3 ------- 2/3 ------- 1       bytes 1, 0.58, 0.34, 0.2
    round 1         kept
    round 2                     kept
    round 3                                 too dear
    round 4                           kept         half way back
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A failed round is tried again nearer to the last good one, until the two are so close,
# as a part of a round.
_NEAR = 0.25


class Try(NamedTuple):
    """A round that has ended.

    Attributes:
        way: The part of the way that it went.
        is_kept: Whether the metric stayed within the budget.
    """

    way: float
    is_kept: bool


def next_way(tries: Sequence[Try], n_rounds: int, most: int) -> float | None:
    """Returns how far the next round goes; ``None`` after the last.

    Args:
        tries: The rounds so far.
        n_rounds: Number of rounds from the dense model to the smallest one.
        most: Largest number of rounds, with those that fail.

    Example:
        >>> next_way([], 4, 9), next_way([Try(0.25, True)], 4, 9)
        (0.25, 0.5)
        >>> next_way([Try(0.25, True), Try(0.5, False)], 4, 9)
        0.375
        >>> next_way([Try(1.0, True)], 4, 9) is None
        True
    """
    good = max((each.way for each in tries if each.is_kept), default=0.0)
    if good >= 1 or len(tries) >= most:
        return None
    bad = min((t.way for t in tries if not t.is_kept and t.way > good), default=None)
    if bad is None:
        # Whole rounds, so that no rounding of a sum makes one more.
        return min(1.0, (int(good * n_rounds + 0.5) + 1) / n_rounds)
    if (bad - good) * n_rounds <= _NEAR * (1 + 1e-9):
        return None
    return (good + bad) / 2


def bytes_at(way: float, whole: float, smallest: float) -> float:
    """Returns the bytes that a round may leave.

    Args:
        way: How far the round goes.
        whole: Bytes of the dense model.
        smallest: Bytes of the smallest one that is wanted.

    Example:
        >>> [round(bytes_at(way, 100, 25)) for way in (0, 0.5, 1)]
        [100, 50, 25]
    """
    return whole * (smallest / whole) ** way
