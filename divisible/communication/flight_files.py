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

import atexit
import contextlib
import mmap
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

from divisible.communication.flight_record import (
    FlightRecord,
    Log,
    own_flight_record,
    read,
)

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
        root = Path(given) if given else _own_directory()
        path = root / job / f"rank-{rank}{_SUFFIX}"
        own_flight_record.move(_mapped(path))
    except (OSError, ValueError) as error:
        if given:
            # Where the script makes its pipeline.
            text = f"there is no flight record in {VARIABLE}={given}: {error}"
            warnings.warn(text, stacklevel=4)
        return
    _Kept.path, _Kept.process = path, os.getpid()
    atexit.register(_remove)
    if not given:
        _tidy(root)


def job_directory() -> Path | None:
    """Returns where the records of this job's ranks are, if in files."""
    return None if _Kept.path is None else _Kept.path.parent


def logs(folder: str | os.PathLike) -> list[Log]:
    """Reads the flight records of a job.

    Args:
        folder: The job's directory.

    Returns:
        By rank.

    Raises:
        ValueError: If there are none, or one cannot be read.
        OSError: If a file cannot be read.
    """
    paths = files(Path(folder))
    if not paths:
        jobs = [path for path in Path(folder).iterdir() if path.is_dir()]
        with_some = sorted(str(job) for job in jobs if files(job))
        which = f"; there are some in {', '.join(with_some)}" if with_some else ""
        raise ValueError(f"there are no flight records in {folder}{which}")
    return sorted(read(path.read_bytes(), str(path)) for path in paths)


def files(folder: Path) -> list[Path]:
    """Returns the flight records in a directory."""
    return [path for path in folder.iterdir() if path.suffix == _SUFFIX]


def _own_directory() -> Path:
    path = Path(tempfile.gettempdir()) / f"divisible-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        # Anybody may make what is in the directory for temporary files.
        raise PermissionError(f"{path} is somebody else's")
    return path


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
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    for _ in range(_ATTEMPTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags, 0o600)
    raise FileNotFoundError(f"{path.parent} vanishes as often as it is made")


def _remove() -> None:
    # What this process has forked is not the rank.
    if os.getpid() == _Kept.process:
        with contextlib.suppress(OSError):
            _Kept.path.unlink()
            # The last one.
            _Kept.path.parent.rmdir()


def _tidy(root: Path) -> None:
    """Removes old records of jobs that have ended."""
    oldest = time.time() - _SECONDS_TO_KEEP
    with contextlib.suppress(OSError):
        for job in root.iterdir():
            # What one job left must not keep all others there.
            with contextlib.suppress(OSError):
                _tidy_job(job, oldest)


def _tidy_job(job: Path, oldest: float) -> None:
    records = files(job)
    # A rank may just have made an empty directory, and its file is to come.
    is_new = not records and job.stat().st_mtime > oldest
    if not is_new and all(_is_old(path, oldest) for path in records):
        for path in records:
            path.unlink()
        job.rmdir()


def _is_old(path: Path, oldest: float) -> bool:
    if path.stat().st_mtime > oldest:
        return False
    try:
        # The kernel may leave the time of a file in memory as it is for long.
        os.kill(read(path.read_bytes(), str(path)).process, 0)
    except (ProcessLookupError, ValueError):
        return True
    except PermissionError:
        pass
    return False
