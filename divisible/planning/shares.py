"""Whole numbers in the ratio of shares: samples of a minibatch for unequal replicas."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from divisible.records import plain_integer, plain_number

_REMEDY = "Give each a positive number, such as its speed"


def integer_shares(shares: Sequence[float], total: int, least: int = 1) -> list[int]:
    """Divides a whole number in the ratio of shares, by largest remainders.

    Each part is its exact share rounded down; the remaining units go, one each, to the
    largest remainders. Parts below ``least`` are raised to it, and the others divide
    the rest in the same way, until no part is too small::

        shares 6 : 3 : 3 : 0.5, total 10, least 1

        exact             4.80    2.40    2.40    0.40
        rounded           5       3       2       0       the last is raised to 1
        exact, of 9       4.50    2.25    2.25
        rounded           5       2       2       1

    Args:
        shares: Positive numbers, of any sum.
        total: Number to divide, such as the samples of a minibatch.
        least: Least size of a part.

    Returns:
        list of int: Parts in the order of the shares, of the sum ``total``. Raised
        parts are ``least``; each other part is within 1 of its exact share of the rest.
        Among equal remainders the first comes first.

    Raises:
        TypeError: If a share is not a number, or ``total`` or ``least`` not an integer.
        ValueError: If there are no shares, one is zero, negative, infinite or NaN,
            ``least`` is negative, or ``total`` is too small for it.

    Example:
        >>> integer_shares([1, 1, 2], 10)
        [3, 2, 5]
        >>> integer_shares([6, 3, 3, 0.5], 10)
        [5, 2, 2, 1]
    """
    exact = [_share(i, share) for i, share in enumerate(shares)]
    total, least = plain_integer("total", total), plain_integer("least", least)
    if not exact:
        raise ValueError(f"there are no shares to divide {total} by: give one at least")
    if least < 0:
        raise ValueError(f"least must not be negative, but is {least}")
    if total < len(exact) * least:
        raise ValueError(
            f"{total} cannot be divided into {len(exact)} parts of at least {least}:"
            f" it takes {len(exact) * least}. Use fewer shares, or a larger total."
        )
    parts = [least] * len(exact)
    free = list(range(len(exact)))
    while free:
        left = total - least * (len(exact) - len(free))
        rounded = _largest_remainders([exact[i] for i in free], left)
        for i, part in zip(free, rounded):
            parts[i] = max(part, least)
        if min(rounded) >= least:
            break
        free = [i for i, part in zip(free, rounded) if part >= least]
    return parts


def _share(i: int, share: float) -> Fraction:
    # Fractions are exact, so that equal remainders are equal and no sum overflows.
    value = Fraction(plain_number(f"share {i}", share, _REMEDY))
    if value == 0:
        raise ValueError(f"share {i} is {share}: it must be positive. {_REMEDY}.")
    return value


def _largest_remainders(shares: Sequence[Fraction], total: int) -> list[int]:
    """Divides a number; the first of equal remainders comes first."""
    whole = sum(shares)
    quotas = [total * share / whole for share in shares]
    parts = [int(quota) for quota in quotas]
    order = sorted(range(len(parts)), key=lambda i: parts[i] - quotas[i])
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return parts
