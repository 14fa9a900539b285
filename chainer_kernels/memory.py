"""Memory that the C library keeps after a step."""

from __future__ import annotations

import ctypes
import functools

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
