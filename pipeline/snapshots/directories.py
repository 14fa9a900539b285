"""Directories of snapshots: one appears when it is complete, and old ones go.

A snapshot is written into ``NAME.partial``, which is renamed when every file is on
disk. One that is replaced meanwhile is ``NAME.replaced``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import warnings
from pathlib import Path

from divisible.files import flush_directory
from pipeline.snapshots.errors import SnapshotError, naming
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import Search
from pipeline.snapshots.listing import is_file, is_folder, is_there, matching, names_in
from pipeline.snapshots.manifest import (
    MANIFEST,
    has_files_of_snapshot,
    read_manifest,
)
from pipeline.snapshots.names import PARTIAL, REPLACED, check_name


def partial_path(path: Path) -> Path:
    """Returns the directory to write a snapshot into before it has its name."""
    return path.with_name(path.name + PARTIAL)


def begin(path: Path) -> None:
    """Makes the directory to write a snapshot into.

    Raises:
        SnapshotError: If something else than a snapshot has the name; it stays.
        ValueError: If it is no name for a snapshot.
    """
    check_name(path)
    if not _may_be_replaced(path):
        raise SnapshotError(
            f"{path} is there and is no snapshot; it would be replaced: give another"
            f" name, such as {path / 'snapshot'}"
        )
    partial = partial_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # What a run that was killed left.
    _remove(partial)
    partial.mkdir()


def _may_be_replaced(path: Path) -> bool:
    """Says whether nothing but a snapshot would be lost, a damaged one included."""
    if not is_there(path):
        # There may be a link that leads nowhere.
        return True
    if not is_folder(path):
        return False
    names = names_in(path)
    if not names or has_files_of_snapshot(names):
        return True
    file = path / MANIFEST
    try:
        read_manifest(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SnapshotError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        # No JSON, and nothing else is there: all others of its files are lost.
        is_damaged = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
        return is_damaged and names == [MANIFEST]
    return True


def time_after_others(path: Path, now: float) -> float:
    """Returns the time for a snapshot that makes it the newest in its directory.

    A clock that is wrong, or was set back, would let a run go on from an older snapshot
    at every restart. So the time is the clock's, but never that of a snapshot that is
    there, nor before it.

    Args:
        path: Of the snapshot.
        now: What the clock says, in seconds since 1970.
    """
    latest = now
    try:
        for other in matching(path.parent, "*"):
            # What has no manifest that can be read is no candidate.
            with contextlib.suppress(SnapshotError):
                if not other.name.endswith(PARTIAL) and is_file(other / MANIFEST):
                    theirs = Snapshot.open(other).time
                    latest = max(latest, math.nextafter(theirs, math.inf))
    except SnapshotError as error:
        warnings.warn(
            f"the snapshot {path} is dated by the clock alone: {error}", stacklevel=2
        )
    return latest


def finish(partial: Path, path: Path) -> bool:
    """Gives a snapshot its name, when all its files are on disk.

    Returns:
        Whether the name is on disk as well. If not, a warning says so, and older
        snapshots had better stay.
    """
    with naming(partial, "flush"):
        flush_directory(partial)
    # A whole snapshot is found at every moment: the old one has a name that is found
    # as well, until the new one has its own.
    replaced = path.with_name(path.name + REPLACED)
    if os.path.lexists(path):
        _remove(replaced)
        path.rename(replaced)
    try:
        partial.rename(path)
    except OSError:
        if os.path.lexists(replaced):
            replaced.rename(path)
        raise
    # From here on the snapshot is saved, whatever happens.
    try:
        flush_directory(path.parent)
    except OSError as error:
        warnings.warn(
            f"the snapshot {path} is saved, but may be lost if the machine fails soon:"
            f" cannot flush {path.parent}: {error.strerror or error}",
            stacklevel=2,
        )
        return False
    with contextlib.suppress(OSError):
        _remove(replaced)
    return True


def _remove(path: Path) -> None:
    """Removes a directory, a file or a symbolic link, if there is one.

    What a link leads to stays.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Removes what was written of a snapshot that failed, as far as possible."""
    with contextlib.suppress(OSError):
        _remove(partial_path(path))


def remove_old(path: Path, n_retains: int) -> None:
    """Removes older snapshots whose names differ from this one's in numbers only.

    What cannot be looked for or removed stays, and does not stop the training.

    Args:
        path: The newest snapshot.
        n_retains: How many to keep, this one included.
    """
    series = _series(path.name)
    try:
        # What killed runs have left, first: an old snapshot gets such a name below.
        for partial in list(matching(path.parent, f"*{PARTIAL}")):
            if _series(partial.name) == series:
                with contextlib.suppress(OSError):
                    _remove(partial)
        found = Search(path.parent).find()
    except SnapshotError as error:
        warnings.warn(
            f"the snapshot {path} is saved, but older ones stay: {error}", stacklevel=2
        )
        return
    # Without the newest itself, which a clock that was set back makes look older.
    others = [
        snapshot.path
        for snapshot in found
        if _series(snapshot.path.name) == series and snapshot.path.name != path.name
    ]
    for other in others[n_retains - 1 :]:
        partial = partial_path(other)
        with contextlib.suppress(OSError):
            # Half a snapshot must not look like a whole one, even if this is killed.
            other.rename(partial)
            _remove(partial)


def _series(name: str) -> str:
    """Returns what the names of a run's snapshots have in common."""
    return re.sub(r"\d+", "0", name.removesuffix(PARTIAL).removesuffix(REPLACED))
