"""The search for flight records of the newest job, or of a process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from divisible.communication.flight_files import (
    files,
    is_running,
    read_file,
    root_directory,
)
from divisible.communication.flight_record import own_flight_record


def newest_job() -> Path:
    """Returns the directory of this user's newest job.

    A job with some ended process counts as newer than one that is running.

    Raises:
        ValueError: If there is no job with records.
        OSError: If the directory of jobs cannot be read, or another user could change
            its content.
    """
    with contextlib.suppress(FileNotFoundError):
        jobs = [job for job in _jobs() if files(job)]
        if jobs:
            return max(jobs, key=_age)
    raise ValueError(
        "there are no flight records of yours on this host. A rank that ends regularly"
        " removes its own. Name the directory of a job"
    )


def of_process(process: int) -> Path | None:
    """Returns the flight record of a process of this user on this host.

    Args:
        process (int): The number of the process.
    """
    with contextlib.suppress(OSError):
        # Newest first, because an earlier process may have had the same number.
        for job in sorted(_jobs(), key=lambda path: -path.stat().st_mtime):
            for path in files(job):
                with contextlib.suppress(OSError, ValueError):
                    log = read_file(path)
                    if (log.process, log.host) == (process, own_flight_record.host):
                        return path
    return None


def _jobs() -> list[Path]:
    found = [path for path in root_directory(make=False).iterdir() if path.is_dir()]
    # A supervisor has a directory for the jobs of each start.
    within = [path for each in found for path in each.glob("*") if path.is_dir()]
    return found + within


def _age(job: Path) -> tuple[bool, float]:
    logs = []
    for path in files(job):
        with contextlib.suppress(OSError, ValueError):
            logs.append(read_file(path))
    times = [entry.time for log in logs for entry in log.entries[-1:]]
    return not all(map(is_running, logs)), max(times, default=0.0)
