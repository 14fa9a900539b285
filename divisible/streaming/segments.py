"""Segments: the rows of an operand that are in memory at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import numpy as np

from divisible.planning.disk import IN_MEMORY, LEAST_BYTES, MOST_BYTES
from divisible.planning.units import format_bytes, parse_bytes


def rows_of_segment(
    shape: tuple[int, ...],
    dtype: np.dtype,
    segment: int | str,
    memory: int | float | str | None = None,
) -> list[int]:
    """Returns the numbers of rows that a segment may have.

    Args:
        shape: Shape of the operand.
        dtype: Dtype of the operand.
        segment (int or str): Rows, or ``'auto'`` for several numbers to choose from.
        memory (int or str): Bytes for the segments that are in memory at a time, such
            as ``'512MiB'``; ``None`` for 16 segments of 32 MiB.

    Returns:
        list of int: One number, or several candidates. The largest comes first,
            and each is half of the one before.

    Raises:
        TypeError: If `segment` is neither a number nor ``'auto'``.
        ValueError: If it is not a positive number, or the memory is too small for it.

    Example:
        >>> rows_of_segment((65536, 1024), np.dtype('f'), 'auto', '128MiB')
        [2048, 1024, 512, 256]
        >>> rows_of_segment((100, 1024), np.dtype('f'), 'auto')
        [100]
        >>> rows_of_segment((100, 1024), np.dtype('f'), 30)
        [30]
    """
    row_bytes = max(math.prod(shape[1:]) * dtype.itemsize, 1)
    limit = _limit(memory)
    if isinstance(segment, str):
        if segment != "auto":
            raise ValueError(f"segment={segment!r}: expected 'auto' or rows")
        rows = min(limit // row_bytes, shape[0])
        _check_room(1, row_bytes, limit, memory)
        candidates = [max(1, rows)]
        while candidates[-1] // 2 * row_bytes >= LEAST_BYTES and len(candidates) < 4:
            candidates.append(candidates[-1] // 2)
        return candidates
    try:
        rows = operator.index(segment)
    except TypeError:
        raise TypeError(
            f"segment={segment!r}: expected 'auto' or a number of rows"
        ) from None
    if rows < 1:
        raise ValueError(f"segment={rows}: expected 1 row or more")
    rows = max(1, min(rows, shape[0]))
    if memory is not None:
        _check_room(rows, row_bytes, limit, memory)
    return [rows]


def _limit(memory: int | float | str | None) -> int:
    """Returns the bytes that a segment may have."""
    if memory is None:
        return MOST_BYTES
    n_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if not 0 < n_bytes < math.inf:
        raise ValueError(f"memory={memory!r}: expected a positive number of bytes")
    return int(n_bytes // IN_MEMORY)


def _check_room(rows: int, row_bytes: int, limit: int, memory: object) -> None:
    if rows * row_bytes <= limit:
        return
    what = f"{rows} rows" if rows > 1 else "1 row"
    if memory is None:
        raise ValueError(
            f"a segment of {what} has {format_bytes(rows * row_bytes)}, and 'auto'"
            f" takes at most {format_bytes(limit)}: give segment=1"
        )
    in_all = format_bytes(IN_MEMORY * rows * row_bytes)
    raise ValueError(
        f"a segment of {what} has {format_bytes(rows * row_bytes)}, and {IN_MEMORY} of"
        f" them may be in memory at a time, {in_all} in all: more than"
        f" memory={memory!r}; give more" + (", or fewer rows" if rows > 1 else "")
    )


def ranges(n_rows: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yields the first row of each segment, and the one behind the last.

    Example:
        >>> list(ranges(10, 4))
        [(0, 4), (4, 8), (8, 10)]
    """
    for start in range(0, n_rows, rows):
        yield start, min(start + rows, n_rows)
