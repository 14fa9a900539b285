"""Finds the newest complete snapshot, makes a new one the newest, and removes old ones.

The search takes no lock, so a run may save in the directory meanwhile. If that run
moves or removes a snapshot, the search is repeated: if it found none, the run would
start from the beginning.
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

from pipeline.between_steps import BetweenSteps
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

# Most repetitions of a search while a run saves in the same directory.
_LOOKS = 20
# Text about a snapshot that is skipped, and the number of a file system's error, if
# any.
_Failure = tuple[str, Optional[int]]
_Identity = Optional[tuple[int, int, int]]
# With these errors, no other snapshot could be read either.
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def latest_snapshot(directory: str | os.PathLike, *, pattern: str = "*") -> Path | None:
    """Returns the newest complete snapshot in a directory.

    Unfinished snapshots are skipped. Snapshots with missing or changed files are
    skipped with a warning; for this, the files of the newest one are read. A snapshot
    that was about to be replaced when the run was killed is found as well. Its name
    ends in a token and ``.replaced``.

    Args:
        directory: Directory to search.
        pattern (str): Pattern of the snapshots' names, with ``*`` for anything.

    Returns:
        Path or None: Directory of the snapshot; ``None`` if there is none.

    Raises:
        SnapshotError: If the directory cannot be read. Also if no snapshot is whole,
            and one could not be read for a reason other than its contents: to start
            from the beginning would be wrong then.

    Example:
        >>> latest_snapshot('no/such/directory') is None
        True
    """

    def failure_of(snapshot: Snapshot) -> _Failure | None:
        return _failure(snapshot.verify)

    return _newest(Search(Path(directory), pattern), failure_of, _call)


def latest_on_all_ranks(
    pipeline: BetweenSteps, directory: str | os.PathLike, pattern: str = "*"
) -> Path | None:
    """Returns :func:`latest_snapshot`, the same on every rank.

    Rank 0 searches for all ranks. To verify the files, each rank reads a part of them.

    Raises:
        SnapshotError: On every rank, for the reasons of :func:`latest_snapshot`; also
            if a rank does not see the snapshot that rank 0 has found.
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


def open_on_all_ranks(pipeline: BetweenSteps, path: str | os.PathLike) -> Snapshot:
    """Returns :meth:`Snapshot.open` of the same path on every rank.

    Raises:
        SnapshotError: On every rank, if a rank cannot open it.
    """
    what = f"cannot resume from {os.fspath(path)}"
    return on_all_ranks(pipeline, "load", what, Snapshot.open, path)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _newest(
    search: Search,
    failure_of: Callable[[Snapshot], _Failure | None],
    attempt_on_first: Callable[..., Any],
) -> Path | None:
    """Returns the newest complete snapshot of a search.

    Args:
        search: Search in a directory.
        failure_of: Returns the fault of a snapshot's files, or ``None``.
        attempt_on_first: Calls a function on the first rank, and returns its result.
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
    """Returns the fault that a function finds in a snapshot, if any."""
    try:
        function(*arguments)
    except SnapshotError as error:
        return _reason(error)
    return None


def _reason(error: SnapshotError) -> _Failure:
    """Returns the text of an error, and its number if the file system raised it."""
    cause = error.__cause__
    return str(error), cause.errno if isinstance(cause, OSError) else None


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=4)


class Search:
    """A search for snapshots in a directory.

    Args:
        directory: Directory to search.
        pattern: Pattern of the snapshots' names.
        warn: Called with a sentence about each snapshot that is skipped.
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
        """Returns the snapshots whose files have the right sizes, the newest first.

        Raises:
            SnapshotError: If the directory cannot be read, or a snapshot cannot be
                checked.
        """
        for _ in range(_LOOKS):
            self._seen = self._candidates()
            found, failures = _opened(self._seen)
            # A snapshot that was moved meanwhile is found under its other name.
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
        """Warns that a snapshot is skipped.

        Args:
            why: Text of the error.
            number: Number of an error of the file system; ``None`` if the contents are
                damaged.

        Raises:
            SnapshotError: If any other snapshot would have the same error.
        """
        if number is not None:
            self._unreadable = why
        if number in _OF_THIS_PROCESS:
            self.check_none()
        self._warn(f"a snapshot is passed over: {why}")

    def check_none(self) -> None:
        """Refuses to report that there is no snapshot, if one could not be read.

        Raises:
            SnapshotError: With the cause.
        """
        if self._unreadable is not None:
            raise SnapshotError(
                f"cannot look for snapshots in {self._directory}: {self._unreadable}"
            )


def _identity(path: Path) -> _Identity:
    """Returns numbers that distinguish a directory from a later one of its name."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _opened(paths: Iterable[Path]) -> tuple[list[Snapshot], list[_Failure]]:
    """Returns the snapshots with files of the right sizes, and the faults of others."""
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
    """Returns whether a path is or was a complete snapshot."""
    # The directory of lost files can often not be read.
    if path.name == "lost+found":
        return False
    if is_file(path / MANIFEST):
        return True
    return is_folder(path) and has_files_of_snapshot(names_in(path))


def age(snapshot: Snapshot) -> tuple[float, int]:
    """Returns a value that is larger for a newer snapshot."""
    return snapshot.time, snapshot.n_steps


@dataclass(frozen=True)
class Series:
    """The snapshots among which a new one is the newest.

    Attributes:
        folder: Directory that they are in.
        pattern: Pattern of their names in it, with ``*`` for anything.
        n_retains: Number of them to keep; at most 0 for all.
    """

    folder: Path
    pattern: str
    n_retains: int

    def next_time(self, path: Path, now: float, remarks: list[str]) -> float:
        """Returns the time for a snapshot that makes it the newest.

        If a clock is wrong or was set back, a run would otherwise resume from an older
        snapshot at every restart. So the time is the clock's, or just after that of the
        newest snapshot, if this is later.

        Args:
            path: Path of the snapshot.
            now: Time of the clock, in seconds since 1970.
            remarks: Gets a warning if the other snapshots cannot be searched.
        """
        latest = now
        try:
            for other in self._others(path):
                # A snapshot whose manifest cannot be read does not count.
                with contextlib.suppress(SnapshotError):
                    if not other.name.endswith(PARTIAL) and is_file(other / MANIFEST):
                        latest = max(latest, _after(Snapshot.open(other).time))
        except SnapshotError as error:
            remarks.append(f"the snapshot {path} is dated by the clock alone: {error}")
        return latest

    def _others(self, path: Path) -> set[Path]:
        """Returns the paths beside a snapshot, and those that match the pattern."""
        patterns = (self.pattern, *replaced_patterns(self.pattern))
        found = {other for each in patterns for other in matching(self.folder, each)}
        return found.union(matching(path.parent, "*"))

    def remove_old(self, path: Path, remarks: list[str]) -> None:
        """Removes older snapshots whose names differ from this one's only in numbers.

        Snapshots that cannot be found or removed stay, and training continues.

        Args:
            path: Path of the newest snapshot.
            remarks: Gets warnings about snapshots that stay, or are skipped.
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
        """Returns the common form of a series' names, folders included."""
        return series(str(path.relative_to(self.folder)))


def _after(time: float) -> float:
    return math.nextafter(time, math.inf)
