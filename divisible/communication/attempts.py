"""Attempts of all ranks together: a failure on one rank is a failure on all.

::

    rank 0   made             .--> "cannot save: rank 1: MemoryError: no room"
    rank 1   MemoryError -all-+--> its own error
    rank 2   made             '--> "cannot save: rank 1: MemoryError: no room"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from divisible.communication.errors import DisagreementError


class Failure(NamedTuple):
    """The failure of a rank, as other ranks receive it.

    Attributes:
        words: The text of the error.
        is_refusal: Whether the error is a :class:`ValueError`, which refuses arguments.
    """

    words: str
    is_refusal: bool


def on_all_ranks(
    gather: Callable[[Any], list],
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
    error: type[Exception] | None = None,
    refusal: type[Exception] = DisagreementError,
) -> Any:
    """Calls a function on every rank; if it fails on one, all ranks raise.

    A :class:`ValueError` refuses the arguments. If all failures are refusals, all ranks
    raise one. Otherwise no rank raises a refusal, so that all ranks go on alike.

    Args:
        gather: Returns the values that all ranks pass to it, in rank order.
        what: The beginning of the error's text, such as ``'cannot move layers'``; may
            be empty.
        function: The function. It should change no state that must change on all ranks
            alike.
        arguments: Arguments of the function.
        error: A class that all ranks raise, also those on which the function failed. By
            default these ranks raise the error of the function.
        refusal: The class of the error on ranks that did not fail, if others refuse.

    Returns:
        The result of the function on this rank.

    Raises:
        Exception: The error of the function on this rank.
        DisagreementError: If the function has failed on another rank.

    Example:
        >>> on_all_ranks(lambda value: [value], 'cannot add', int.__add__, 1, 2)
        3
    """
    result = cause = mine = None
    try:
        result = function(*arguments)
    except Exception as raised:
        cause = raised
        mine = Failure(words_of(raised, error), isinstance(raised, ValueError))
    failures = {i: each for i, each in enumerate(gather(mine)) if each is not None}
    if not failures:
        return result
    if error is not None:
        rank, kind = min(failures), error
    else:
        is_refused = all(each.is_refusal for each in failures.values())
        if cause is not None and isinstance(cause, ValueError) == is_refused:
            raise cause
        rank = next(i for i, each in failures.items() if each.is_refusal == is_refused)
        kind = refusal if is_refused else DisagreementError
    beginning = f"{what}: " if what else ""
    raise kind(f"{beginning}rank {rank}: {failures[rank].words}") from cause


def refuse_together(said: Sequence[str], own: Exception | None = None) -> None:
    """Raises an error on every rank if some rank refuses.

    Args:
        said: The reason of each rank; empty for a rank that does not refuse.
        own: The error that this rank raises, if it refuses.

    Raises:
        Exception: ``own``.
        DisagreementError: The reason of the first rank that refuses.

    Example:
        >>> refuse_together(["", ""])
        >>> refuse_together(["", "no epochs"])
        Traceback (most recent call last):
        ...
        divisible.communication.errors.DisagreementError: rank 1: no epochs
    """
    if own is not None:
        raise own
    for rank, reason in enumerate(said):
        if reason:
            raise DisagreementError(f"rank {rank}: {reason}")


def words_of(error: Exception, known: type[Exception] | None = None) -> str:
    """Returns the text of an error for other ranks, with its class.

    Args:
        error: The error.
        known: A class whose name is left out of the text.

    Example:
        >>> words_of(KeyError('lr')), words_of(OSError('full'), OSError)
        ('KeyError: lr', 'full')
    """
    # The text of a KeyError has quotes around it.
    in_quotes = isinstance(error, KeyError) and error.args
    words = str(error.args[0] if in_quotes else error)
    if known is not None and isinstance(error, known):
        return words
    return f"{type(error).__name__}: {words}"
