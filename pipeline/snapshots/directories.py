"""Directories of snapshots: one appears when it is complete.

A snapshot is written into ``NAME.TOKEN.partial``, which is renamed when every file is
on disk. One that is replaced is ``NAME.TOKEN.replaced`` meanwhile. Every save has a
token of its own, so several runs may save into one directory, even under one name: the
last one wins. See :mod:`pipeline.snapshots.owners`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from divisible.files import flush_directory
from pipeline.snapshots import owners
from pipeline.snapshots.errors import SnapshotError, naming
from pipeline.snapshots.listing import is_folder, matching, mode_of, names_in
from pipeline.snapshots.manifest import (
    MANIFEST,
    has_files_of_snapshot,
    read_manifest,
)
from pipeline.snapshots.names import (
    PARTIAL,
    REPLACED,
    aside,
    check_name,
    parts,
    series,
)
from pipeline.snapshots.remarks import remark

# How often to take a name that other runs take as well, at the same moment.
_TRIES = 100
# A directory with files has it, or something that is no directory.
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
# Directories to which the names that lead are on disk.
_leads_on_disk: set[Path] = set()
# Whether the user knows that another run saves here.
_has_warned = False


class Draft:
    """A snapshot that is being written, and gets its name when it is complete.

    Args:
        path: What it will be.

    Attributes:
        path (Path): The same.
        folder (Path): Where to write its files.

    Raises:
        ValueError: If it is no name for a snapshot.
    """

    def __init__(self, path: Path) -> None:
        check_name(path)
        self.path = path
        self._token = owners.new_token()
        self.folder = path.with_name(aside(path.name, self._token, PARTIAL))
        self._theirs: dict[Path, float] = {}

    def begin(self) -> None:
        """Makes the directory to write into.

        Raises:
            SnapshotError: If something else than a snapshot has the name; it stays.
        """
        if not _may_be_replaced(self.path):
            raise SnapshotError(
                f"{self.path} is there and is no snapshot; it would be replaced: give"
                f" another name, such as {self.path / 'snapshot'}"
            )
        _make_folder(self.path.parent)
        owners.use(self._token)
        # If one cannot look, the snapshot is to be saved all the same.
        with contextlib.suppress(SnapshotError):
            # What a run that was killed left takes the space of this one.
            for partial in list(_of_series(self.path, PARTIAL)):
                if owners.is_left_over(partial):
                    remove_whole(partial)
            self._theirs = self._of_others()
        self.folder.mkdir()

    def finish(self) -> bool:
        """Gives the snapshot its name, when all its files are on disk.

        Returns:
            Whether the name is on disk as well. If not, a warning says so, and older
            snapshots had better stay.
        """
        with naming(self.folder, "flush"):
            flush_directory(self.folder)
        self._warn_of_others()
        replaced = self._take_name()
        # From here on the snapshot is saved, whatever happens.
        parent = self.path.parent
        try:
            flush_directory(parent)
        except OSError as error:
            remark(
                f"the snapshot {self.path} is saved, but may be lost if the machine"
                f" fails soon: cannot flush {parent}: {error.strerror or error}"
            )
            return False
        with contextlib.suppress(SnapshotError):
            for other in list(_of_series(self.path, REPLACED)):
                is_of_this = parts(other.name)[0] == self.path.name
                if other in replaced or (is_of_this and owners.is_left_over(other)):
                    remove_whole(other)
        return True

    def discard(self) -> None:
        """Removes what was written, as far as possible, if it has not its name."""
        with contextlib.suppress(OSError):
            _remove(self.folder)

    def release(self) -> None:
        """Leaves what is still there to whoever finds it."""
        owners.release(self._token)

    def _take_name(self) -> list[Path]:
        """Takes the name, and returns where that is which had it.

        A whole snapshot is found at every moment: the old one has a name that is found
        as well, until the new one has its own.
        """
        replaced: list[Path] = []
        for n_left in reversed(range(_TRIES)):
            if os.path.lexists(self.path):
                there = _beside(self.path, REPLACED)
                # Another run may have been faster.
                with contextlib.suppress(FileNotFoundError):
                    self.path.rename(there)
                    replaced.append(there)
            try:
                self.folder.rename(self.path)
                break
            except OSError as error:
                if error.errno in _IS_TAKEN and n_left:
                    continue
                if replaced and not os.path.lexists(self.path):
                    replaced[-1].rename(self.path)
                raise
        return replaced

    def _of_others(self) -> dict[Path, float]:
        """Returns what others write beside snapshots of this series, and when."""
        theirs = {}
        for partial in _of_series(self.path, PARTIAL):
            token = parts(partial.name)[1]
            if token is not None and not owners.is_of_this_process(token):
                is_alive = owners.lives(token)
                theirs[partial] = -1.0 if is_alive else owners.last_change(partial)
        return theirs

    def _warn_of_others(self) -> None:
        """Warns of a run that has saved meanwhile, once in the life of a process."""
        global _has_warned
        if _has_warned or not self._theirs:
            return
        with contextlib.suppress(SnapshotError):
            now = self._of_others()
            for partial, changed in self._theirs.items():
                if changed < 0 or now.get(partial) != changed:
                    _has_warned = True
                    remark(
                        f"another run saves snapshots in {self.path.parent} as well,"
                        f" now {parts(partial.name)[0]}: the last one of a name stays,"
                        f" and who resumes takes the newest, whosever it is. Give each"
                        f" run a directory of its own"
                    )
                    return


def _make_folder(folder: Path) -> None:
    """Makes a directory, and waits until the names that lead to it are on disk.

    If it is there, a trainer may have made it just now; then they are flushed as far as
    one may, once in the life of a process.
    """
    folder = folder.absolute()
    way = (folder, *folder.parents)
    n_made = sum(1 for _ in itertools.takewhile(lambda each: not is_folder(each), way))
    if n_made:
        folder.mkdir(parents=True, exist_ok=True)
    for number, above in enumerate(folder.parents):
        if number < n_made:
            with naming(above, "flush"):
                flush_directory(above)
        elif folder not in _leads_on_disk:
            with contextlib.suppress(OSError):
                flush_directory(above)
    _leads_on_disk.add(folder)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(aside(path.name, owners.new_token(), ending))


def _of_series(path: Path, ending: str) -> Iterator[Path]:
    """Yields what lies beside the snapshots of a series, with one of two endings."""
    for other in matching(path.parent, "*" + ending):
        if series(other.name) == series(path.name):
            yield other


def _may_be_replaced(path: Path) -> bool:
    """Says whether nothing but a snapshot would be lost, a damaged one included."""
    # In one look: another run may put something there, or take it away.
    mode = mode_of(path)
    if not stat.S_ISDIR(mode):
        # There may be a link that leads nowhere.
        return mode == 0
    names = names_in(path)
    if not names or has_files_of_snapshot(names):
        return True
    with naming(path / MANIFEST, "read"):
        try:
            read_manifest(path)
        except FileNotFoundError:
            return False
        except ValueError as error:
            # No JSON, and nothing else is there: all others of its files are lost.
            is_damaged = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
            return is_damaged and names == [MANIFEST]
    return True


def remove_whole(path: Path) -> None:
    """Removes what lies there, as far as possible, under a name of this process.

    So half a snapshot never looks like a whole one, even if this is killed; and a run
    that was thought dead cannot go on in it.
    """
    with contextlib.suppress(OSError):
        partial = _beside(path.with_name(parts(path.name)[0]), PARTIAL)
        path.rename(partial)
        _remove(partial)


def _remove(path: Path) -> None:
    """Removes a directory, a file or a symbolic link, if there is one.

    What a link leads to stays.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
