"""Finds the newest whole snapshot, makes a new one the newest, and removes old ones.

Whoever looks has no lock: a run may save there meanwhile. What it has moved or removed
is looked for once more, for to find none would be to begin anew.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from pipeline.pipeline import Pipeline
from pipeline.snapshots.directories import remove_whole
from pipeline.snapshots.errors import SnapshotError, on_all_ranks, on_first
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.names import (
    MANIFEST,
    PARTIAL,
    has_files_of_snapshot,
    is_file,
    is_folder,
    matching,
    names_in,
    replaced_patterns,
    series,
)

# How often to look again while a run saves in the same directory.
_LOOKS = 20
# Why a snapshot is passed over, and the number of the error of the file system, if any.
_Failure = tuple[str, Optional[int]]
_Identity = Optional[tuple[int, int, int]]
# With these no snapshot can be read, whichever it is.
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def latest_snapshot(directory: str | os.PathLike, *, pattern: str = "*") -> Path | None:
    """Returns the newest whole snapshot in a directory.

    One that was not finished is passed over. One that has lost a file, or whose files
    are not what was saved, is passed over with a warning; so the files of the newest
    one are read. One that was about to be replaced when the run was killed is found as
    well, with a token and ``.replaced`` behind its name.

    Args:
        directory: Where to look.
        pattern (str): The pattern of names of snapshots, with ``*`` for anything.

    Returns:
        Path or None: Its directory; ``None`` if there is none.

    Raises:
        SnapshotError: If the directory cannot be looked into; or if no snapshot is
            whole, and one could not be read for another reason than its content. To
            begin anew would be wrong then.

    Example:
        >>> latest_snapshot('no/such/directory') is None
        True
    """

    def failure_of(snapshot: Snapshot) -> _Failure | None:
        return _failure(snapshot.verify)

    return _newest(Search(Path(directory), pattern), failure_of, _call)


def latest_on_all_ranks(
    pipeline: Pipeline, directory: str | os.PathLike, pattern: str = "*"
) -> Path | None:
    """Returns the same on every rank, as :func:`latest_snapshot`.

    The first rank looks, so that all take the same one; its files are shared out among
    the ranks to be read.

    Raises:
        SnapshotError: On every rank, as :func:`latest_snapshot`; also if one does not
            see what the first one has found.
    """
    what = f"cannot resume from {os.fspath(directory)}"
    attempt = functools.partial(on_all_ranks, pipeline, "load", what)
    attempt_on_first = functools.partial(on_first, pipeline, "load", what)
    search, world = Search(Path(directory), pattern), pipeline.internals.ranks.world

    def failure_on_any(snapshot: Snapshot) -> _Failure | None:
        unseen = pipeline.internals.gather(_failure(_see, snapshot), "load")
        if any(unseen) and not attempt_on_first(search.has_gone, snapshot):
            attempt(_see, snapshot)
        mine = list(snapshot.files)[world.rank :: world.size]
        failure = _failure(snapshot.verify, mine)
        failures = [each for each in pipeline.internals.gather(failure, "load") if each]
        return failures[0] if failures else None

    return _newest(search, failure_on_any, attempt_on_first)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _newest(
    search: Search,
    failure_of: Callable[[Snapshot], _Failure | None],
    attempt_on_first: Callable[..., Any],
) -> Path | None:
    """Returns the newest whole snapshot of a search.

    Args:
        search: Where to look.
        failure_of: Says what is wrong with the files of a snapshot.
        attempt_on_first: Calls a function on the first rank, and returns what that
            returned.
    """
    for n_left in reversed(range(_LOOKS)):
        for snapshot in attempt_on_first(search.find):
            failure = failure_of(snapshot)
            if failure is None:
                return snapshot.path
            if n_left and attempt_on_first(search.has_gone, snapshot):
                break
            attempt_on_first(search.pass_over, *failure)
        else:
            break
    attempt_on_first(search.check_none)
    return None


def _see(snapshot: Snapshot) -> None:
    """Checks that a snapshot that another rank has found is here as well."""
    Snapshot.open(snapshot.path).check_sizes()


def _failure(function: Callable[..., None], *arguments: Any) -> _Failure | None:
    """Returns what a function finds wrong with a snapshot, if anything."""
    try:
        function(*arguments)
    except SnapshotError as error:
        return _reason(error)
    return None


def _reason(error: SnapshotError) -> _Failure:
    """Returns the words of an error, and its number if it is of the file system."""
    cause = error.__cause__
    return str(error), cause.errno if isinstance(cause, OSError) else None


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=4)


class Search:
    """A search for snapshots in a directory.

    Args:
        directory: Where to look.
        pattern: The pattern of their names.
        warn: Called with a sentence for each snapshot that is passed over.
    """

    def __init__(
        self,
        directory: Path,
        pattern: str = "*",
        warn: Callable[[str], None] = _warn,
    ) -> None:
        self._directory = directory
        self._pattern = pattern
        self._warn = warn
        self._unreadable: str | None = None
        self._seen: dict[Path, _Identity] = {}

    def find(self) -> list[Snapshot]:
        """Returns those whose files have the right sizes, the newest first.

        Raises:
            SnapshotError: If one cannot look, or cannot tell whether there are any.
        """
        for _ in range(_LOOKS):
            self._seen = self._candidates()
            found, failures = _opened(self._seen)
            # One that a run has moved meanwhile is found under its other name.
            if self._seen.items() <= self._candidates().items():
                break
        for failure in failures:
            self.pass_over(*failure)
        if not found:
            self.check_none()
        return sorted(found, key=age, reverse=True)

    def has_gone(self, snapshot: Snapshot) -> bool:
        """Returns whether a run has moved a snapshot since it was found."""
        return _identity(snapshot.path) != self._seen[snapshot.path]

    def _candidates(self) -> dict[Path, _Identity]:
        patterns = (self._pattern, *replaced_patterns(self._pattern))
        paths = {path for each in patterns for path in matching(self._directory, each)}
        paths = {path for path in paths if not path.name.endswith(PARTIAL)}
        return {path: _identity(path) for path in paths}

    def pass_over(self, why: str, number: int | None) -> None:
        """Warns that a snapshot is passed over.

        Args:
            why: The words of the error.
            number: The number of an error of the file system; ``None`` if the content
                is damaged.

        Raises:
            SnapshotError: If the error would be the same with any other snapshot.
        """
        if number is not None:
            self._unreadable = why
        if number in _OF_THIS_PROCESS:
            self.check_none()
        self._warn(f"a snapshot is passed over: {why}")

    def check_none(self) -> None:
        """Refuses to say that there is none, if one could not be read.

        Raises:
            SnapshotError: With the cause.
        """
        if self._unreadable is not None:
            raise SnapshotError(
                f"cannot look for snapshots in {self._directory}: {self._unreadable}"
            )


def _identity(path: Path) -> _Identity:
    """Returns what tells a directory from another one that has its name later."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _opened(paths: Iterable[Path]) -> tuple[list[Snapshot], list[_Failure]]:
    """Returns those whose files have the right sizes, and what is wrong with others."""
    found, failures = [], []
    for path in sorted(paths):
        try:
            if _was_finished(path):
                snapshot = Snapshot.open(path)
                snapshot.check_sizes()
                found.append(snapshot)
        except SnapshotError as error:
            failures.append(_reason(error))
    return found, failures


def _was_finished(path: Path) -> bool:
    """Returns whether there was a whole snapshot, whatever is left of it."""
    # The directory of lost files is often one that cannot be looked into.
    if path.name == "lost+found":
        return False
    if is_file(path / MANIFEST):
        return True
    return is_folder(path) and has_files_of_snapshot(names_in(path))


def age(snapshot: Snapshot) -> tuple[float, int]:
    """Returns what is greater for a newer snapshot."""
    return snapshot.time, snapshot.n_steps


@dataclass(frozen=True)
class Series:
    """The snapshots among which a new one is the newest.

    Attributes:
        folder: Where they are.
        pattern: The pattern of their names below it, with ``*`` for anything.
        n_retains: How many of them to keep; at most 0 for all.
    """

    folder: Path
    pattern: str
    n_retains: int

    def next_time(self, path: Path, now: float, remarks: list[str]) -> float:
        """Returns the time for a snapshot that makes it the newest.

        A clock that is wrong, or was set back, would let a run go on from an older
        snapshot at every restart. So the time is the clock's, but never that of a
        snapshot that is there, nor before it.

        Args:
            path: The path of the snapshot.
            now: The time by the clock, in seconds since 1970.
            remarks: A warning is added where one cannot look.
        """
        latest = now
        try:
            for other in self._others(path):
                # One without a manifest that can be read is no candidate.
                with contextlib.suppress(SnapshotError):
                    if not other.name.endswith(PARTIAL) and is_file(other / MANIFEST):
                        latest = max(latest, _after(Snapshot.open(other).time))
        except SnapshotError as error:
            remarks.append(f"the snapshot {path} is dated by the clock alone: {error}")
        return latest

    def _others(self, path: Path) -> set[Path]:
        """Returns what lies beside a snapshot, or fits the pattern."""
        patterns = (self.pattern, *replaced_patterns(self.pattern))
        found = {other for each in patterns for other in matching(self.folder, each)}
        return found.union(matching(path.parent, "*"))

    def remove_old(self, path: Path, remarks: list[str]) -> None:
        """Removes older snapshots whose names differ from this one's in numbers only.

        What cannot be looked for or removed stays, and does not stop the training.

        Args:
            path: The newest snapshot.
            remarks: Warnings are added of what stays, and of what is passed over.
        """
        if self.n_retains <= 0:
            return
        try:
            found = Search(self.folder, self.pattern, remarks.append).find()
        except SnapshotError as error:
            remarks.append(
                f"the snapshot {path} is saved, but older ones stay: {error}"
            )
            return
        found = [each for each in found if self._name(each.path) == self._name(path)]
        ages = [age(each) for each in found if each.path == path]
        others = [each.path for each in found if ages and age(each) < ages[0]]
        for other in others[self.n_retains - 1 :]:
            remove_whole(other)

    def _name(self, path: Path) -> str:
        """Returns what the names of these have in common, folders included."""
        return series(str(path.relative_to(self.folder)))


def _after(time: float) -> float:
    return math.nextafter(time, math.inf)
