"""The flight records that the ranks of a start leave to their supervisor."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from divisible.communication import flight_files
from divisible.communication.flight_record import Log


def new_folder() -> Path:
    """Makes a directory for the flight records of a start.

    Raises:
        OSError: If there can be none.
    """
    root = Path(os.path.abspath(flight_files.root_directory()))
    root.mkdir(parents=True, exist_ok=True)
    if not os.environ.get(flight_files.VARIABLE):
        flight_files.tidy(root)
    return Path(tempfile.mkdtemp(prefix="supervised-", dir=root))


def logs(folder: Path | None) -> list[Log]:
    """Returns the flight records of a start; those that cannot be read are left out.

    Args:
        folder: The directory of the start; ``None`` if there is none.
    """
    found = []
    # The system may have removed old files meanwhile.
    with contextlib.suppress(OSError):
        jobs = (
            [] if folder is None else [job for job in folder.iterdir() if job.is_dir()]
        )
        for path in [path for job in jobs for path in flight_files.files(job)]:
            with contextlib.suppress(OSError, ValueError):
                found.append(flight_files.read_file(path))
    return found


def ended(folder: Path | None) -> Log | None:
    """Returns the record of a rank of this host that has ended, but not regularly.

    A rank that ends regularly removes its record.

    Args:
        folder: The directory of the start; ``None`` if there is none.
    """
    return next((log for log in logs(folder) if not flight_files.is_running(log)), None)
