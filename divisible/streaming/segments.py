"""Segments: the rows of an operand that are in memory at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

import numpy as np

#: Bytes of a segment where nobody says otherwise: large enough that a disk reads it at
#: its full speed, and that its products take BLAS to its own.
AUTO_BYTES = 32 * 2**20


def rows_of_segment(
    shape: tuple[int, ...],
    dtype: np.dtype,
    segment: int | str,
    n_bytes: int = AUTO_BYTES,
) -> int:
    """Returns how many rows a segment has.

    Args:
        shape: Of the operand.
        dtype: Of the operand.
        segment (int or str): Rows, or ``'auto'`` for as many as `n_bytes` hold.
        n_bytes (int): Of a segment, if that is ``'auto'``.

    Raises:
        TypeError: If `segment` is neither a number nor ``'auto'``.
        ValueError: If it is no positive number, or a row has more than `n_bytes`.

    Example:
        >>> rows_of_segment((4096, 1024), np.dtype('f'), 'auto', 2**20)
        256
        >>> rows_of_segment((100, 1024), np.dtype('f'), 'auto')
        100
    """
    if isinstance(segment, str):
        if segment != "auto":
            raise ValueError(f"segment={segment!r}: expected 'auto' or rows")
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        rows = n_bytes // max(row_bytes, 1)
        if rows < 1:
            raise ValueError(
                f"a row of {row_bytes} bytes is larger than a segment of {n_bytes}"
            )
    else:
        try:
            rows = operator.index(segment)
        except TypeError:
            raise TypeError(
                f"segment={segment!r}: expected 'auto' or a number of rows"
            ) from None
        if rows < 1:
            raise ValueError(f"segment={rows}: expected 1 row or more")
    return max(1, min(rows, shape[0]))


def ranges(n_rows: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yields the first row and the one behind the last, of each segment.

    Example:
        >>> list(ranges(10, 4))
        [(0, 4), (4, 8), (8, 10)]
    """
    for start in range(0, n_rows, rows):
        yield start, min(start + rows, n_rows)
