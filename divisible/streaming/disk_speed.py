"""The bandwidths of the disk below a directory, measured."""

from __future__ import annotations

import os
import time

from divisible.planning.disk import Disk
from divisible.streaming.directories import usable_directory
from divisible.streaming.mapped import MappedArray, drop_released

_ROW_BYTES = 2**20
# Rows between two waits, like a segment of a streamed layer.
_SEGMENT = 8


def measure_disk(
    directory: str | os.PathLike | None = None, *, n_bytes: int = 128 * 2**20
) -> Disk:
    """Measures how fast streamed layers can write and read files in a directory.

    A file is written in segments and read again. Each segment is dropped from memory
    afterwards. If the memory of the host has a limit, the numbers are those of the
    disk. A machine with much memory may answer from its own cache.

    Args:
        directory: The directory; by default the one in which :class:`Streamed` makes
            its files.
        n_bytes: Bytes of the file, which is removed afterwards.

    Returns:
        Disk: For :func:`stream` and :func:`divisible.best_plan`.

    Raises:
        StoreError: If there is no such directory, or no room in it.
        ValueError: If ``n_bytes`` are less than a MiB.

    Example:
        >>> disk = measure_disk(n_bytes=2**20)
        >>> disk.read > 0 and disk.write > 0
        True
    """
    n_rows = n_bytes // _ROW_BYTES
    if n_rows < 1:
        raise ValueError(f"n_bytes={n_bytes}: expected {_ROW_BYTES} or more")
    file = MappedArray(
        (n_rows, _ROW_BYTES // 4), "f", usable_directory(directory), "a measurement"
    )
    written, read = (_bandwidth(file, is_written) for is_written in (True, False))
    return Disk(read=read, write=written)


def _bandwidth(file: MappedArray, is_written: bool) -> float:
    begun, n_rows = time.perf_counter(), len(file.array)
    for row in range(0, n_rows, _SEGMENT):
        end = min(row + _SEGMENT, n_rows)
        file.prefetch(end, min(end + _SEGMENT, n_rows))
        if is_written:
            file.array[row:end] = 1
        else:
            file.array[row:end].sum()
        file.release(row, end, is_written)
    drop_released()
    return file.n_bytes / (time.perf_counter() - begun)
