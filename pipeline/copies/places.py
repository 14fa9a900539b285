"""Folders of copies in the memory of a host, and who may remove them.

::

    /dev/shm/divisible-copies-1000-3f2a91c04d5e97b1/   the copies of a run, on a host
        5e0c77a2-rank-2/         of a rank, since one start of the run
            .snapshots.lock      locked while the rank lives
            copy_12-3/           a copy of the state after 12 minibatches
                manifest.json
                stage-2.npz      the rank's own file
                stage-1.npz      the file of a rank whose partner it is
            copy_13-4.TOKEN.partial/

The folder's name follows from the user and from the name of the run. A run that is
started again finds the copies of its start before. Other runs leave them alone while
their ranks live, and for an hour after that, in which a run may be started again. A run
without room for its copies leaves them for a minute only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chainer_kernels.memory_limits import text_of
from pipeline.snapshots.directories import Lock, locked, remove_whole
from pipeline.snapshots.errors import SnapshotError, naming
from pipeline.snapshots.names import PARTIAL, is_folder, names_in

#: The directory of memory that all processes of a host share.
SHARED_MEMORY = Path("/dev/shm")
# Seconds after which copies of a run whose ranks are dead may be removed: by any other
# run, and by a run that has no room.
_SECONDS_KEPT, _SECONDS_KEPT_IF_NEEDED = 3600, 60
# Seconds that the ranks of the start before may take to end.
_SECONDS_TO_END = 10
# Locked folders of this process.
_living: weakref.WeakValueDictionary[Path, Lock] = weakref.WeakValueDictionary()
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_COPY = "copy_"
#: Beginning of the names of folders for the files that a rank is about to load.
LOADED = "loaded-"


@dataclass(frozen=True)
class Home:
    """The place of a rank's copies, and the places of all ranks.

    Attributes:
        directory: Directory of all runs' copies on this host.
        run_folder: Directory of the run's copies on this host.
        folder: Directory of this rank's copies.
        lock: Lock of ``folder``, which ends with this process.
        start: Token of this start of the run.
        places: Name of each rank's place, by rank.
        rank: Number of this rank in the world.
    """

    directory: Path
    run_folder: Path
    folder: Path
    lock: Lock | None
    start: str
    places: Sequence[str]
    rank: int

    @property
    def is_first(self) -> bool:
        """Whether no lower rank has the same place."""
        return self.places.index(self.places[self.rank]) == self.rank

    @property
    def earlier(self) -> list[Path]:
        """Folders of ranks of earlier starts of the run, which are dead."""
        folders = _folders_of_ranks(self.run_folder)
        return [each for each in folders if not each.name.startswith(self.start)]

    def remove_all_but(self, kept: Collection[Path]) -> None:
        """Removes this rank's copies that are not in ``kept``, as far as possible."""
        with contextlib.suppress(SnapshotError):
            _remove_copies(self.folder, kept)

    def remove_earlier(self, kept: Collection[Path] = ()) -> None:
        """Removes copies of earlier starts of the run, but those in ``kept``.

        Those that cannot be removed stay.
        """
        with contextlib.suppress(SnapshotError):
            for folder in self.earlier:
                if any(folder in each.parents for each in kept):
                    _remove_copies(folder, kept)
                else:
                    remove_whole(folder)

    def remove(self) -> None:
        """Removes this rank's copies; with the last ones on the host, all."""
        if self.is_first:
            self.remove_earlier()
        remove_whole(self.folder)
        # Ranks that are not as far still have folders in it.
        with contextlib.suppress(OSError):
            self.run_folder.rmdir()


def _remove_copies(folder: Path, kept: Collection[Path]) -> None:
    for each in [folder / name for name in names_in(folder)]:
        if each.name.startswith((_COPY, LOADED)) and each not in kept:
            remove_whole(each)


def place_of(directory: Path) -> str:
    """Returns a name that all ranks with the same memory share, and no others.

    Raises:
        SnapshotError: If the directory does not exist, or cannot be written to.
    """
    with naming(directory, "keep copies in"):
        status = os.stat(directory)
    if not is_folder(directory) or not os.access(directory, os.W_OK | os.X_OK):
        raise SnapshotError(
            f"cannot keep copies in {directory}: it is not a directory that can be"
            f" written to. Give another directory="
        )
    boot = text_of(_BOOT).strip()
    return f"{socket.gethostname()} {boot} {status.st_dev} {status.st_ino}"


def folder_of_run(directory: Path, name: str) -> Path:
    """Returns the folder of the copies of a run, by the name of the run."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return directory / f"{_prefix()}{digest}"


def _prefix() -> str:
    return f"divisible-copies-{os.getuid()}-"


def make_run_folder(folder: Path) -> None:
    """Makes the folder of a run, once the ranks of its start before have ended.

    Raises:
        SnapshotError: If the folder is another user's, or if a process that lives has
            copies in it.
    """
    with naming(folder, "make"):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        is_own = _is_own(folder)
    if not is_own:
        raise SnapshotError(
            f"{folder} belongs to somebody else: remove it, or give another directory="
        )
    end = time.monotonic() + _SECONDS_TO_END
    while (owner := _living_owner(folder)) is not None:
        if time.monotonic() > end:
            raise SnapshotError(
                f"another run keeps its copies in {folder}: {owner}. End that run, or"
                f" give this one another trainer.out or name="
            )
        time.sleep(0.1)


def _is_own(folder: Path) -> bool:
    """Returns whether a path is a directory of this user, and no link."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def make_rank_folder(
    run_folder: Path, start: str, rank: int
) -> tuple[Path, Lock | None]:
    """Makes the folder of a rank, and locks it.

    Raises:
        SnapshotError: If it cannot be made.
    """
    folder = run_folder / f"{start}-rank-{rank}"
    with naming(folder, "make"):
        folder.mkdir(mode=0o700)
    lock = locked(folder)
    if lock is not None:
        _living[folder] = lock
    return folder, lock


def remove_dead_runs(directory: Path, own: Path, is_needed: bool = False) -> None:
    """Removes the copies of other runs of this user whose ranks have long been dead.

    Args:
        directory: Directory of all runs' folders.
        own: The folder of this run, which stays.
        is_needed: Whether this run has no room otherwise.
    """
    kept = _SECONDS_KEPT_IF_NEEDED if is_needed else _SECONDS_KEPT
    with contextlib.suppress(SnapshotError):
        for name in names_in(directory):
            folder = directory / name
            if not name.startswith(_prefix()) or folder == own:
                continue
            with contextlib.suppress(OSError, SnapshotError):
                # Other users may give such a name to anything.
                if not _is_own(folder):
                    continue
                is_old = time.time() - _last_change(folder) > kept
                if is_old and _living_owner(folder, if_unknown="nobody") is None:
                    remove_whole(folder)


def _last_change(folder: Path) -> float:
    folders = [folder, *_folders_of_ranks(folder)]
    return max(os.stat(each).st_mtime for each in folders)


def _living_owner(run_folder: Path, if_unknown: str | None = None) -> str | None:
    """Returns the words of a process that lives and has copies there, if any.

    Args:
        run_folder: The folder of a run.
        if_unknown: The result if the file system has no locks.
    """
    for folder in _folders_of_ranks(run_folder):
        # A process does not exclude itself by a lock.
        if folder in _living:
            return f"process {os.getpid()}, this one"
        try:
            if locked(folder) is None:
                return if_unknown
        except SnapshotError as error:
            return str(error)
    return None


def _folders_of_ranks(run_folder: Path) -> list[Path]:
    return [
        run_folder / name
        for name in names_in(run_folder)
        if "-rank-" in name and is_folder(run_folder / name)
    ]


def copies_in(run_folder: Path) -> Iterator[Path]:
    """Yields the folders of all copies of a run on this host, of any of its starts."""
    for folder in _folders_of_ranks(run_folder):
        for name in names_in(folder):
            if name.startswith(_COPY) and not name.endswith(PARTIAL):
                yield folder / name


def copy_name(n_steps: int, number: int) -> str:
    """Returns the name of a copy.

    Args:
        n_steps: Number of minibatches that the pipeline has run.
        number: Number of the copy in this start of the run, so that no two have the
            same name.
    """
    return f"{_COPY}{n_steps}-{number}"
