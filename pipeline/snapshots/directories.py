"""Directories of snapshots, which appear when complete and belong to one run.

A snapshot is written into ``NAME.TOKEN.partial``, which is renamed when every file is
on disk. A snapshot that is being replaced is called ``NAME.TOKEN.replaced`` meanwhile.
Tokens are random, so a rank of a killed run that still writes cannot write into a later
snapshot. A lock refuses a second run, so other directories beside snapshots are left
over from earlier runs::

    result/.snapshots.lock           locked until the run ends, however it ends
    result/iter_10                   whole
    result/iter_20.TOKEN.partial     being written, or left by a run that was killed
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import secrets
import shutil
import socket
import stat
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

from divisible.communication.flight_record import own_flight_record
from divisible.files import flush_directory
from pipeline.snapshots.errors import SnapshotError, naming
from pipeline.snapshots.files import read_manifest
from pipeline.snapshots.names import (
    MANIFEST,
    PARTIAL,
    REPLACED,
    TOKEN_DIGITS,
    check_name,
    has_files_of_snapshot,
    is_folder,
    matching,
    mode_of,
    name_beside,
    names_in,
    parts,
    series,
)

#: Name of the file in a directory that the saving run locks.
LOCK = ".snapshots.lock"
# Some file systems have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_locks: weakref.WeakValueDictionary[tuple[int, int, int], Lock] = (
    weakref.WeakValueDictionary()
)
# Two files that two threads open would not exclude each other, and closing either one
# would release both locks.
_one_thread = threading.Lock()
# Drafts that this process writes; it may have several runs.
_being_written: set[Path] = set()
# Directories whose parents' entries have been flushed to disk.
_leads_on_disk: set[Path] = set()


class Lock:
    """A lock on a directory, which lasts until nothing refers to it.

    The system releases it when the process ends. Forked processes do not inherit this
    kind of lock, and NFS supports it.

    Attributes:
        descriptor (int): Descriptor of the locked file; -1 if it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def text(self) -> str:
        """Returns the text in the file about the process that has locked it."""
        text = b""
        with contextlib.suppress(OSError):
            text = os.pread(self.descriptor, 200, 0)
        return text.decode(errors="replace").strip() or "a process"

    def close(self) -> None:
        """Closes the file, which releases the lock."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def locked(folder: Path) -> Lock | None:
    """Locks a directory, so that no other process saves in it.

    Returns:
        The lock, which all runs of this process share; ``None`` if the file system has
        no locks.

    Raises:
        SnapshotError: If another process has the lock, or locking fails.
    """
    file = folder / LOCK
    with _one_thread, naming(file, "lock"):
        lock = _locks.get(_identity(file))
        if lock is None:
            # A link could lead to another user's file, which would be overwritten.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            lock = Lock(os.open(file, flags, 0o666))
        try:
            # Also for our own lock, which is lost if somebody has copied the file here.
            fcntl.lockf(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            who = lock.text()
            # Closed at once: later, it would release a lock that was acquired
            # meanwhile.
            lock.close()
            _locks.pop(_identity(file), None)
            if error.errno in _NO_LOCKS:
                return None
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise SnapshotError(
                f"another run saves snapshots in {folder}: {who}. Give each run a"
                f" directory of its own, or end that run; if it has ended, remove"
                f" {file}"
            ) from None
        _locks[_identity(file)] = lock
        # A text for other processes, for which a full disk need not have room.
        with contextlib.suppress(OSError):
            # All users who may save in the directory may lock it.
            os.fchmod(lock.descriptor, os.stat(folder).st_mode & 0o666)
            words = f"process {os.getpid()} on {socket.gethostname()}\n"
            os.ftruncate(lock.descriptor, os.pwrite(lock.descriptor, words.encode(), 0))
        return lock


def _identity(file: Path) -> tuple[int, int, int] | None:
    """Returns numbers that identify a file in this process, not in a forked one."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return os.getpid(), status.st_dev, status.st_ino


class Draft:
    """A snapshot that is being written, and gets its name when it is complete.

    Args:
        path: Path of the complete snapshot.
        directory: Directory of the run's snapshots, which is locked; by default the
            parent of ``path``.

    Attributes:
        path (Path): Path of the complete snapshot.
        folder (Path): Directory in which to write its files.
        lock (Lock or None): Lock of the directory, from :meth:`begin` to
            :meth:`release`.
        remarks (list of str): Warnings to show once it is saved; before that, a warning
            raised as an error would count as a failure.

    Raises:
        ValueError: If the path cannot be the name of a snapshot.
    """

    def __init__(self, path: Path, directory: Path | None = None) -> None:
        check_name(path)
        self.path = path
        self._directory = path.parent if directory is None else directory
        self.folder = _beside(path, PARTIAL)
        self.lock: Lock | None = None
        self.remarks: list[str] = []
        # A later step may have ended when the snapshot is complete.
        self._n_steps = own_flight_record.n_steps

    def begin(self) -> None:
        """Makes the directory for the files.

        Raises:
            SnapshotError: If something other than a snapshot has the name, which stays;
                or if another run saves there.
        """
        if not _may_be_replaced(self.path):
            raise SnapshotError(
                f"{self.path} is there and is no snapshot; it would be replaced: give"
                f" another name, such as {self.path / 'snapshot'}"
            )
        for folder in {self.path.parent: None, self._directory: None}:
            _make_folder(folder)
        self.lock = locked(self._directory)
        if self.lock is None:
            self.remarks.append(
                f"the file system of {self._directory} has no locks: give each run a"
                f" directory of its own, for nothing refuses a second one there"
            )
        # If the search fails, the snapshot must still be saved.
        with contextlib.suppress(SnapshotError):
            # Left-overs of a killed run take disk space.
            for partial in list(_of_series(self.path, PARTIAL)):
                if partial not in _being_written:
                    remove_whole(partial)
        _being_written.add(self.folder)
        self.folder.mkdir()

    def finish(self) -> bool:
        """Gives the snapshot its name, when all its files are on disk.

        Returns:
            Whether the name is on disk as well. If not, a warning is added, and older
            snapshots should stay.
        """
        with naming(self.folder, "flush"):
            flush_directory(self.folder)
        self._take_name()
        # From here on the snapshot is saved.
        own_flight_record.save(self._n_steps)
        parent = self.path.parent
        try:
            flush_directory(parent)
        except OSError as error:
            self.remarks.append(
                f"the snapshot {self.path} is saved, but may be lost if the machine"
                f" fails soon: cannot flush {parent}: {error.strerror or error}"
            )
            return False
        with contextlib.suppress(SnapshotError):
            for other in list(_of_series(self.path, REPLACED)):
                if parts(other.name)[0] == self.path.name:
                    remove_whole(other)
        return True

    def _take_name(self) -> None:
        """Renames the directory of files to the snapshot's name.

        A complete snapshot can be found at every moment, because the name of a replaced
        snapshot can be found as well.
        """
        replaced = None
        if os.path.lexists(self.path):
            replaced = _beside(self.path, REPLACED)
            self.path.rename(replaced)
        try:
            self.folder.rename(self.path)
        except OSError:
            if replaced is not None:
                replaced.rename(self.path)
            raise

    def discard(self) -> None:
        """Removes the files written so far, if the snapshot has no name yet."""
        with contextlib.suppress(OSError):
            _remove(self.folder)

    def release(self) -> None:
        """Releases the lock; remaining files may be removed by later runs."""
        _being_written.discard(self.folder)
        self.lock = None

    def warn(self) -> None:
        """Shows the warnings about a snapshot that is saved."""
        for each in self.remarks:
            warnings.warn(each, stacklevel=3)


def _make_folder(folder: Path) -> None:
    """Makes a directory, and waits until the entries that lead to it are on disk.

    If it exists, a trainer may have just made it. Then its parents are flushed if that
    is allowed, once per process.
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
    token = secrets.token_hex(TOKEN_DIGITS // 2)
    return path.with_name(name_beside(path.name, token, ending))


def _of_series(path: Path, ending: str) -> Iterator[Path]:
    """Yields the directories of a series with one of two endings."""
    for other in matching(path.parent, "*" + ending):
        if series(other.name) == series(path.name):
            yield other


def _may_be_replaced(path: Path) -> bool:
    """Returns whether only a snapshot, perhaps damaged, would be replaced."""
    mode = mode_of(path)
    if not stat.S_ISDIR(mode):
        # Zero: nothing is there, or a link that leads nowhere.
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
            # A damaged manifest that is alone: the snapshot has lost its other files.
            is_damaged = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
            return is_damaged and names == [MANIFEST]
    return True


def remove_whole(path: Path) -> None:
    """Removes a path as far as possible, after renaming it.

    So a partly removed snapshot never looks whole, even if this process is killed; and
    a rank of a killed run cannot continue to write in it.
    """
    with contextlib.suppress(OSError):
        partial = _beside(path.with_name(parts(path.name)[0]), PARTIAL)
        path.rename(partial)
        _remove(partial)


def _remove(path: Path) -> None:
    """Removes a directory, a file or a symbolic link, if it exists.

    The target of a link stays.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
