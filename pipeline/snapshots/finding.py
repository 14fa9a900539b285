"""Finds the newest whole snapshot; says which others are passed over, and why."""

from __future__ import annotations

import errno
import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from pipeline.pipeline import Pipeline
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.listing import is_file, is_folder, matching, names_in
from pipeline.snapshots.manifest import MANIFEST, has_files_of_snapshot
from pipeline.snapshots.names import PARTIAL, REPLACED
from pipeline.snapshots.on_all_ranks import on_all_ranks

# With these no snapshot can be read, whichever it is.
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def latest_snapshot(directory: str | os.PathLike, pattern: str = "*") -> Path | None:
    """Returns the newest whole snapshot in a directory.

    One that was not finished is passed over. One that has lost a file, or whose files
    are not what was saved, is passed over with a warning; so the files of the newest
    one are read. One that was about to be replaced when the run was killed is found as
    well, with ``.replaced`` behind its name.

    Args:
        directory: Where to look.
        pattern (str): What the names of snapshots look like, with ``*`` for anything.

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
    search = Search(Path(directory), pattern)
    for snapshot in search.find():
        failure = _failure(snapshot)
        if failure is None:
            return snapshot.path
        search.pass_over(*failure)
    search.check_none()
    return None


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
    on_first = functools.partial(attempt, _on_first, pipeline)
    search, n_ranks = Search(Path(directory), pattern), pipeline.schedule.n_ranks
    found = on_first(search.find)
    for snapshot in pipeline.gather(found, "load")[0]:
        attempt(_see, snapshot)
        failure = _failure(snapshot, list(snapshot.files)[pipeline.rank :: n_ranks])
        failures = [each for each in pipeline.gather(failure, "load") if each]
        if not failures:
            return snapshot.path
        on_first(search.pass_over, *failures[0])
    on_first(search.check_none)
    return None


def _on_first(pipeline: Pipeline, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments) if pipeline.rank == 0 else None


def _see(snapshot: Snapshot) -> None:
    """Looks whether a snapshot that another rank has found is here as well."""
    Snapshot.open(snapshot.path).check_sizes()


def _failure(
    snapshot: Snapshot, names: Sequence[str] | None = None
) -> tuple[str, int | None] | None:
    """Returns why files of a snapshot are not what was saved, if so."""
    try:
        snapshot.verify(names)
    except SnapshotError as error:
        return _reason(error)
    return None


def _reason(error: SnapshotError) -> tuple[str, int | None]:
    """Returns the words of an error, and its number if it is of the file system."""
    cause = error.__cause__
    return str(error), cause.errno if isinstance(cause, OSError) else None


class Search:
    """A search for snapshots in a directory.

    Args:
        directory: Where to look.
        pattern: What their names look like.
    """

    def __init__(self, directory: Path, pattern: str = "*") -> None:
        self._directory = directory
        self._pattern = pattern
        self._unreadable: str | None = None

    def find(self) -> list[Snapshot]:
        """Returns those whose files have the right sizes, the newest first.

        Raises:
            SnapshotError: If one cannot look, or cannot tell whether there are any.
        """
        paths = {
            *matching(self._directory, self._pattern),
            *matching(self._directory, self._pattern + REPLACED),
        }
        found = []
        for path in sorted(paths):
            try:
                if _was_finished(path):
                    snapshot = Snapshot.open(path)
                    snapshot.check_sizes()
                    found.append(snapshot)
            except SnapshotError as error:
                self.pass_over(*_reason(error))
        if not found:
            self.check_none()
        return sorted(found, key=_age, reverse=True)

    def pass_over(self, why: str, number: int | None) -> None:
        """Warns that a snapshot is passed over.

        Args:
            why: The words of the error.
            number: Of an error of the file system; ``None`` if the content is damaged.

        Raises:
            SnapshotError: If the error would be the same with any other snapshot.
        """
        if number is not None:
            self._unreadable = why
        if number in _OF_THIS_PROCESS:
            self.check_none()
        warnings.warn(f"a snapshot is passed over: {why}", stacklevel=3)

    def check_none(self) -> None:
        """Refuses to say that there is none, if one could not be read.

        Raises:
            SnapshotError: With the cause.
        """
        if self._unreadable is not None:
            raise SnapshotError(
                f"cannot look for snapshots in {self._directory}: {self._unreadable}"
            )


def _was_finished(path: Path) -> bool:
    """Says whether there was a whole snapshot, whatever is left of it."""
    # The directory of lost files is often one that cannot be looked into.
    if path.name.endswith(PARTIAL) or path.name == "lost+found":
        return False
    if is_file(path / MANIFEST):
        return True
    return is_folder(path) and has_files_of_snapshot(names_in(path))


def _age(snapshot: Snapshot) -> tuple[float, int]:
    return snapshot.time, snapshot.n_steps
