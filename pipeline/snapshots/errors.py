"""Errors of snapshots, and differences between a snapshot and the run.

Each rank fills a ledger while it loads. Together, the ledgers of all ranks show which
keys no rank has read, and which keys a rank did not find::

    rank 0   found model/0/W model/0/b, read model/0/W
    rank 1   found model/1/W,           read model/1/W, missing model/1/b
    all      left over model/0/b,       missing model/1/b
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from divisible.communication import attempts
from divisible.files import why_not
from divisible.terminal_text import printable

if TYPE_CHECKING:
    from pipeline.between_steps import BetweenSteps

_PARTS = {
    "model": "the model",
    "optimizer": "the optimizer",
    "state": "state",
    "random": "the random states",
}
_SHOWN = 10


class SnapshotError(RuntimeError):
    """A snapshot could not be written, or must not be read.

    When ranks save or load together, all ranks raise it. Its text may have names from
    untrusted files, whose control characters are made printable.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keeps_lines=True)


class MismatchError(SnapshotError, ValueError):
    """A snapshot does not fit the objects that it is loaded into."""


class UnreadableError(SnapshotError, ValueError):
    """A file is damaged, or has pickled objects, which could run any code."""


def on_all_ranks(
    pipeline: BetweenSteps,
    call: str,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Calls a function on every rank; all ranks raise an error if one fails.

    Returns:
        Result of the function on this rank.

    Raises:
        SnapshotError: On every rank, with the error of the first rank that failed.
    """
    gather = functools.partial(pipeline.internals.gather, call=call)
    return attempts.on_all_ranks(
        gather, what, function, *arguments, error=SnapshotError
    )


def on_first(
    pipeline: BetweenSteps,
    call: str,
    what: str,
    function: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Calls a function on rank 0.

    Returns:
        Result of the function on rank 0, on every rank.

    Raises:
        SnapshotError: On every rank, if the function fails.
    """

    def if_first() -> Any:
        return function(*arguments) if pipeline.is_chief else None

    return pipeline.internals.gather(
        on_all_ranks(pipeline, call, what, if_first), call
    )[0]


def words_of(error: Exception) -> str:
    """Returns the text of an error; with its class, unless it is a SnapshotError."""
    return attempts.words_of(error, SnapshotError)


@contextlib.contextmanager
def naming(path: str | os.PathLike, doing: str) -> Iterator[None]:
    """Adds the path of a file to errors of the file system in a block.

    An error while reading or writing, rather than opening, has no path of its own.

    Args:
        path: Path of the file or the directory.
        doing: Verb for the operation, such as ``'read'``.

    Raises:
        SnapshotError: In place of an :class:`OSError`, which is its cause.
    """
    try:
        yield
    except OSError as error:
        raise SnapshotError(
            f"cannot {doing} {os.fspath(path)}: {why_not(error, path)}"
        ) from error


@dataclass
class Ledger:
    """The keys that one rank has met while it loaded.

    Attributes:
        found: Keys in the files that it opened.
        read: Keys that it read.
        missing: Keys that it needed, but that were not saved.
        empty: Keys that it read, whose arrays had no value when they were saved.
        kinds: Classes of optimizers or update rules that differ: the saved one and the
            present one.
        unlike: A sentence for each array of another shape or dtype.
    """

    found: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    empty: set[str] = field(default_factory=set)
    kinds: set[tuple[str, str]] = field(default_factory=set)
    unlike: list[str] = field(default_factory=list)


class Differences(NamedTuple):
    """Keys of a snapshot that were not loaded, and keys that it lacks.

    A key begins with ``model``, ``optimizer``, ``state`` or ``random``. One key may
    stand for all keys below it. An optimizer of another class is listed as ``optimizer:
    NesterovAG``.

    Attributes:
        missing (tuple of str): Keys of the run that were not saved.
        left_over (tuple of str): Saved keys that nothing in the run has read.
    """

    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.left_over)

    def __str__(self) -> str:
        clauses = []
        for kind, part in _PARTS.items():
            missing = _of_kind(kind, self.missing)
            left_over = _of_kind(kind, self.left_over)
            words = []
            if missing:
                words.append(f"it has no {_shown(missing)}")
            if left_over:
                are = "is" if len(left_over) == 1 else "are"
                words.append(f"{_shown(left_over)} {are} left over")
            if words:
                clauses.append(f"of {part} {', and '.join(words)}")
        classes = [
            tuple(key.split(": ")[1] for key in keys if ": " in key)
            for keys in (self.left_over, self.missing)
        ]
        if any(classes):
            saved, here = map(", ".join, classes)
            clauses.append(f"it is of the optimizer {saved}, but {here} is here")
        if "model/loss" in self.missing:
            clauses.append("it was saved with a loss without parameters")
        return printable("; ".join(clauses))


def _of_kind(kind: str, keys: Iterable[str]) -> list[str]:
    return [key[len(kind) + 1 :] for key in keys if key.startswith(f"{kind}/")]


def _shown(keys: Sequence[str]) -> str:
    more = len(keys) - _SHOWN
    text = ", ".join(keys[:_SHOWN])
    return f"{text} and {more} more" if more > 0 else text


def compare(
    ledgers: Iterable[Ledger], what: str, strict: bool, hint: str = ""
) -> Differences:
    """Compares the ledgers of all ranks.

    Args:
        ledgers: The ledgers of all ranks, or a single one.
        what: Beginning of an error.
        strict: Whether differences are an error.
        hint: End of an error, with further advice.

    Returns:
        Differences: The differences; empty if there are none.

    Raises:
        MismatchError: If there are differences and ``strict`` is true, or if arrays
            have other shapes or dtypes.
    """
    found, read, missing, kinds = set(), set(), set(), set()
    unlike = []
    for ledger in ledgers:
        found |= ledger.found
        read |= ledger.read
        missing |= ledger.missing
        kinds |= ledger.kinds
        unlike += ledger.unlike
    # Ranks may share a parameter, and a rank that misses keys reads twice.
    unlike = list(dict.fromkeys(unlike))
    saved, here = ({f"optimizer: {pair[i]}" for pair in kinds} for i in (0, 1))
    differences = Differences(
        missing=(*_highest(missing, found), *sorted(here)),
        left_over=(*_highest(found - read, read | missing), *sorted(saved)),
    )
    if unlike:
        more = f", and {len(unlike) - 4} more like that" if len(unlike) > 4 else ""
        also = f"; {differences}" if differences else ""
        raise MismatchError(
            f"{what}: {'; '.join(unlike[:4])}{more}{also}: the model or the optimizer"
            f" is another one{hint}"
        )
    if differences and strict:
        called = ""
        model = (_of_kind("model", keys) for keys in differences)
        if list(map(bool, model)) == [False, True]:
            called = (
                ". If a layer registers that at its first call, make a call before"
                " loading"
            )
        raise MismatchError(
            f"{what}: {differences}{called}. strict=False goes on{hint}"
        )
    return differences


def _highest(keys: Iterable[str], others: Iterable[str]) -> list[str]:
    """Returns the keys, with one key for all below a part that ``others`` lack.

    ::

        keys       optimizer/0/W/v   state/trainer/extensions/A/t and .../A/n
        others     optimizer/0/W/t   state/trainer/extensions/B/t
        returned   optimizer/0/W/v   state/trainer/extensions/A
    """
    known = {
        "/".join(parts[:n])
        for parts in (key.split("/") for key in others)
        for n in range(1, len(parts) + 1)
    }
    found = set()
    for key in keys:
        parts = key.split("/")
        # Shorter keys would say too little, such as model/0, state/iterator, or a key
        # of all extensions of a trainer.
        first = 4 if parts[2:3] == ["extensions"] else 3
        lengths = range(min(first, len(parts)), len(parts))
        tops = ("/".join(parts[:n]) for n in lengths)
        found.add(next((top for top in tops if top not in known), key))
    return sorted(found)
