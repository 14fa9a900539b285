"""Errors in which other ranks have a part."""

from __future__ import annotations

from collections.abc import Iterable


class StallError(RuntimeError):
    """A wait for another rank took longer than the timeout, or that rank has left."""


class DisagreementError(ValueError):
    """Ranks were given different things; raised alike on every rank."""


def in_words(ranks: Iterable[int]) -> str:
    """Returns the names of ranks, for a message.

    Example:
        >>> in_words([0]), in_words([0, 2, 3])
        ('rank 0', 'ranks 0, 2 and 3')
    """
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
