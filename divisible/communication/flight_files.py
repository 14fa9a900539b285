"""Where flight records lie, and when they go.

::

    /tmp/divisible-1000/          of a user; or the directory that a variable names
        3f2a9c1b70de/             of a job, under a name that all its ranks know
            rank-0.flight
            rank-1.flight

A rank that ends regularly removes its own. What others left there is removed when it
is some days old, and nobody writes it any more.
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

#: Names a directory to keep flight records in, such as one that all hosts share.
VARIABLE = "DIVISIBLE_FLIGHT_RECORD"
_SUFFIX = ".flight"
_SECONDS_TO_KEEP = 7 * 24 * 3600
# How often a new file's directory may vanish: a rank that ends removes an empty one.
_ATTEMPTS = 5


class _Kept:
    """The file of this process's record; there is at most one."""

    path: Path | None = None
    process = 0
    #: Whether the user has named the directory, which other hosts may have, too.
    is_given = False


def keep_flight_record(job: str, rank: int, n_ranks: int) -> None:
    """Moves this process's flight record into a file, if it is in none.

    One rank alone waits for nobody: it has a file only where a directory is given.
    Where there can be none, the record stays in memory, and the run goes on.

    Args:
        job (str): A name that all ranks know, and no other job has.
        rank (int): This rank.
        n_ranks (int): How many there are.
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
            # Where the script makes its pipeline.
            where = f"{VARIABLE}={given}" if given else tempfile.gettempdir()
            text = f"there is no flight record in {where}: {error}"
            warn_user(text)
        return
    _Kept.path, _Kept.process, _Kept.is_given = path, os.getpid(), bool(given)
    at_end(_remove)
    if not given:
        _tidy(root)


def job_directory() -> Path | None:
    """Returns where the records of this job's ranks are, if in files."""
    return None if _Kept.path is None else _Kept.path.parent


def is_on_this_host() -> bool:
    """Returns whether the records lie where a read does not wait for another host."""
    return not _Kept.is_given


def logs(folder: str | os.PathLike) -> list[Log]:
    """Reads the flight records of a job; warns of those that cannot be read.

    Args:
        folder: The job's directory.

    Returns:
        By rank.

    Raises:
        ValueError: If there are none, or none can be read.
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
    # To open a pipe waits for somebody who writes.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no file")
        # One byte more tells what is too long.
        return read(file.read(FlightRecord.n_bytes + 1), str(path))


def add_end(path: Path, text: str) -> None:
    """Writes into the flight record of a process that has ended what ended it.

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
    """Returns whether the process of a record may still run, here or elsewhere."""
    if log.host != own_flight_record.host:
        return True
    try:
        os.kill(log.process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # Another user's process has the number by now.
        pass
    return True


def root_directory(make: bool = True) -> Path:
    """Returns where the directories of this user's jobs are.

    Args:
        make (bool): Whether to make a directory that is missing.

    Raises:
        OSError: If another user could change what is in it, or it cannot be made.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    path = Path(tempfile.gettempdir()) / f"divisible-{os.getuid()}"
    if path.is_symlink():
        # This user has other means to name another directory.
        raise PermissionError(f"{path} is a link. Name a directory in {VARIABLE}")
    return own_directory(path, make)


def _mapped(path: Path) -> mmap.mmap:
    """Returns the memory of a new file, in a directory that need not be there."""
    # All of it: to write to memory for which the disk has no room ends a process.
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
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags, 0o600)
    raise FileNotFoundError(f"{path.parent} vanishes as often as it is made")


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
    # What this process has forked is not the rank.
    if os.getpid() == _Kept.process:
        with contextlib.suppress(OSError):
            _Kept.path.unlink()
            # The last one.
            _Kept.path.parent.rmdir()


def _tidy(root: Path) -> None:
    """Removes old records of jobs that have ended, and follows no link."""
    oldest = time.time() - _SECONDS_TO_KEEP
    with contextlib.suppress(OSError), _opened(root) as folder:
        for name in os.listdir(folder):
            # What one job left must not keep all others there.
            with contextlib.suppress(OSError):
                _tidy_job(folder, name, oldest)


def _tidy_job(root: int, job: str, oldest: float) -> None:
    with _opened(job, root) as folder:
        records = [name for name in os.listdir(folder) if name.endswith(_SUFFIX)]
        # A rank may just have made an empty directory, and its file is to come.
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
        # The kernel may leave the time of a file in memory as it is for long.
        return not is_running(read_file(Path(name), folder))
    except ValueError:
        return True
