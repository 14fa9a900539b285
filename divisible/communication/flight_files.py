"""The files of flight records, and when they are removed.

::

    /tmp/divisible-1000/          of a user; or the directory that a variable names
        3f2a9c1b70de/             of a job, under a name that all its ranks know
            rank-0.flight
            rank-1.flight
        supervised-x7k2a9/        of a supervisor's start, with the directory of its job

A rank that ends regularly removes its own file. Files that other ranks left behind are
removed some days later, if no process writes them any more.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chainer_compat.own_directory import own_directory
from divisible.communication.flight_record import (
    FlightRecord,
    Log,
    own_flight_record,
    read,
    with_end,
)
from divisible.communication.leaving import at_end
from divisible.terminal_text import printable
from divisible.user_warnings import warn_user

#: Environment variable with a directory for flight records, such as a shared one.
VARIABLE = "DIVISIBLE_FLIGHT_RECORD"
_SUFFIX = ".flight"
_SECONDS_TO_KEEP = 7 * 24 * 3600
# A new file's directory may vanish, because a rank that ends removes an empty one.
_ATTEMPTS = 5


class _Kept:
    """The file of this process's record. A process has at most one."""

    path: Path | None = None
    process = 0
    #: Whether the user has named the directory, which other hosts may share.
    is_given = False


def keep_flight_record(job: str, rank: int, n_ranks: int) -> None:
    """Moves this process's flight record into a file, unless it is in one.

    A single rank waits for no other rank, so it has a file only in a directory that the
    user has named. If there can be no file, the record stays in memory, and the run
    goes on.

    Args:
        job (str): A name that all ranks of this job know, and no other job has.
        rank (int): This rank.
        n_ranks (int): Number of ranks.
    """
    given = os.environ.get(VARIABLE)
    if _Kept.path is not None or (n_ranks == 1 and not given):
        return
    own_flight_record.name_rank(rank, n_ranks)
    try:
        root = root_directory()
        path = root / job / f"rank-{rank}{_SUFFIX}"
        own_flight_record.move(_mapped(path))
    except (OSError, ValueError) as error:
        if given or isinstance(error, PermissionError):
            # The warning points to the line of the script that makes its pipeline.
            where = f"{VARIABLE}={given}" if given else tempfile.gettempdir()
            text = f"there is no flight record in {where}: {error}"
            warn_user(text)
        return
    _Kept.path, _Kept.process, _Kept.is_given = path, os.getpid(), bool(given)
    at_end(_remove)
    if not given:
        tidy(root)


def job_directory() -> Path | None:
    """Returns the directory of this job's records, or ``None`` without files."""
    return None if _Kept.path is None else _Kept.path.parent


def own_file() -> Path | None:
    """Returns the file of this process's record, or ``None`` without one."""
    return _Kept.path


def is_on_this_host() -> bool:
    """Returns whether no other host is needed to read the records."""
    return not _Kept.is_given


def logs(folder: str | os.PathLike) -> list[Log]:
    """Reads the flight records of a job; warns of those that cannot be read.

    Args:
        folder: The job's directory.

    Returns:
        The logs, by rank.

    Raises:
        ValueError: If there are no records, or none that can be read.
        OSError: If the directory cannot be read.
    """
    found, faults = [], []
    for path in files(Path(folder)):
        try:
            found.append(read_file(path))
        except (OSError, ValueError) as error:
            faults.append(printable(str(error)))
    if not found and faults:
        raise ValueError("; ".join(faults))
    for fault in faults:
        warn_user(f"{fault}. It is left out")
    if not found:
        jobs = [path for path in Path(folder).iterdir() if path.is_dir()]
        with_some = sorted(printable(str(job)) for job in jobs if files(job))
        which = f"; there are some in {', '.join(with_some)}" if with_some else ""
        where = printable(os.fspath(folder))
        raise ValueError(f"there are no flight records in {where}{which}")
    return sorted(found, key=lambda log: log.rank)


def files(folder: Path) -> list[Path]:
    """Returns the flight records in a directory."""
    return sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX)


def read_file(path: Path, directory: int | None = None) -> Log:
    """Reads a flight record.

    Args:
        path (Path): The file.
        directory (int or None): The descriptor of a directory that the path begins in.

    Raises:
        ValueError: If the file is no flight record.
        OSError: If the file cannot be read.
    """
    # Opening a pipe for reading would wait for a process that writes to it.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no file")
        # One more byte shows that a file is too long.
        return read(file.read(FlightRecord.n_bytes + 1), str(path))


def add_end(path: Path, text: str) -> None:
    """Adds the reason of a process's end to its flight record.

    Args:
        path (Path): The file.
        text (str): The words for the end.

    Raises:
        ValueError: If the file is no flight record.
        OSError: If it cannot be written to.
    """
    with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b") as file:
        data = bytearray(file.read(FlightRecord.n_bytes + 1))
        with_end(data, text)
        file.seek(0)
        file.write(data)


def is_running(log: Log) -> bool:
    """Returns whether the process of a record may still run, on any host."""
    if log.host != own_flight_record.host:
        return True
    try:
        os.kill(log.process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Another user's process has that number now.
        pass
    return True


def root_directory(make: bool = True) -> Path:
    """Returns the directory of the directories of this user's jobs.

    Args:
        make (bool): Whether to make a directory that is missing.

    Raises:
        OSError: If another user could change its content, or it cannot be made.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    path = Path(tempfile.gettempdir()) / f"divisible-{os.getuid()}"
    if path.is_symlink():
        # A user who wants another directory can name it in the variable.
        raise PermissionError(f"{path} is a link. Name a directory in {VARIABLE}")
    return own_directory(path, make)


def _mapped(path: Path) -> mmap.mmap:
    """Returns the memory of a new file, and makes its directory if it is missing."""
    # All of it is reserved: writing to memory without room on the disk ends a process.
    allocate = getattr(os, "posix_fallocate", None)
    if allocate is None:
        raise OSError("this system reserves no room for a file")
    descriptor = _create(path)
    try:
        allocate(descriptor, 0, FlightRecord.n_bytes)
        return mmap.mmap(descriptor, FlightRecord.n_bytes)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _create(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_ATTEMPTS):
        _make(path.parent)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags, 0o600)
    raise FileNotFoundError(f"{path.parent} vanishes as often as it is made")


def _make(folder: Path) -> None:
    """Makes a directory and those above it, which only this user can write to."""
    if not folder.parent.exists():
        _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _opened(name: str | os.PathLike, within: int | None = None) -> Iterator[int]:
    """Opens a directory, which must not be a link to one."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove() -> None:
    # A process that this one has forked is not the rank.
    if os.getpid() == _Kept.process:
        with contextlib.suppress(OSError):
            _Kept.path.unlink()
            # The last rank removes the directory.
            _Kept.path.parent.rmdir()


def tidy(root: Path) -> None:
    """Removes old records of jobs that have ended. It follows no links.

    Args:
        root (Path): The directory of the directories of jobs.
    """
    oldest = time.time() - _SECONDS_TO_KEEP
    with contextlib.suppress(OSError), _opened(root) as folder:
        for name in os.listdir(folder):
            # An error with one job's files must not stop the others' removal.
            with contextlib.suppress(OSError):
                _tidy_job(folder, name, oldest)


def _tidy_job(root: int, job: str, oldest: float) -> None:
    with _opened(job, root) as folder:
        names = os.listdir(folder)
        records = [name for name in names if name.endswith(_SUFFIX)]
        for name in set(names).difference(records):
            # A supervisor has a directory for the jobs of each start.
            with contextlib.suppress(OSError):
                _tidy_job(folder, name, oldest)
        # The directory may be one that a rank has just made for its file.
        is_new = not records and os.fstat(folder).st_mtime > oldest
        if is_new or not all(_is_old(folder, name, oldest) for name in records):
            return
        for name in records:
            os.unlink(name, dir_fd=folder)
    os.rmdir(job, dir_fd=root)


def _is_old(folder: int, name: str, oldest: float) -> bool:
    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > oldest:
        return False
    try:
        # The kernel may update the times of a file in memory only much later.
        return not is_running(read_file(Path(name), folder))
    except ValueError:
        return True
