"""Memory that the C library keeps after a step, and memory that is free."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@functools.cache
def keep_freed() -> bool:
    """Keeps the memory of freed arrays, so that new arrays need no system call.

    The GNU C library hands large arrays back when they are freed. A training step asks
    for the same ones again, and each page of them costs a fault and is filled with
    zeros. The largest amount of memory that a process holds stays the same.

    Returns:
        Whether the C library has such settings, and took them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # No array is mapped on its own; the end of the heap is never given back.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def free_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Returns how much memory this process may take, without pushing others out.

    The result is 0 where the operating system does not report its free memory.

    Args:
        proc: Folder in which the system describes its memory and this process.
        groups: Folder of the control groups, of version 1 or 2.
    """
    try:
        fields = dict(s.split(":", 1) for s in (proc / "meminfo").open())
        free = int(fields["MemAvailable"].split()[0]) << 10
        lines = (proc / "self/cgroup").read_text().splitlines()
    except (OSError, KeyError, ValueError):
        return 0
    for line in lines:
        _, kinds, path = (line.split(":", 2) + ["", ""])[:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        group = groups / ("memory" if kinds else "") / path.lstrip("/")
        names = ("limit_in_bytes", "usage_in_bytes") if kinds else ("max", "current")
        # Without a limit the first is no number, or a very large one.
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((group / f"memory.{n}").read_text()) for n in names)
            free = min(free, max(0, limit - used))
    return free
