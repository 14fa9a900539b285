"""Directories for files that may be larger than memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from divisible.streaming.errors import StoreError

#: Types of file systems whose files lie in memory.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def usable_directory(directory: str | os.PathLike | None = None) -> Path:
    """Returns a directory for files that may be larger than memory.

    Args:
        directory: The directory that the user named. By default the one for temporary
            files, or ``/var/tmp`` if that one lies in memory.

    Raises:
        StoreError: If there is no such directory, or the directory cannot be written
            to, or lies in memory.
    """
    named = directory is not None
    path = Path(directory if named else tempfile.gettempdir())
    if not named and file_system(path) in IN_MEMORY:
        path = Path("/var/tmp")
    if not path.is_dir():
        raise StoreError(f"directory={str(path)!r}: there is no such directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreError(f"directory={str(path)!r} cannot be written to")
    kind = file_system(path)
    if kind in IN_MEMORY:
        raise StoreError(
            f"directory={str(path)!r} is on a {kind}, which lies in memory itself:"
            f" give a directory on a disk"
        )
    return path


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Returns the type of the file system of a path; empty if it is unknown."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    path = path.resolve()
    longest, kind = -1, ""
    for line in lines:
        _, place, found, *_ = line.split(" ")
        place = Path(place.encode().decode("unicode_escape"))
        # If several are mounted at one place, the last one counts.
        is_above = place == path or place in path.parents
        if is_above and len(place.parts) >= longest:
            longest, kind = len(place.parts), found
    return kind
