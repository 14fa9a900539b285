"""Rows of a large input, read by a thread while the segment before is computed.

::

    thread      read 0 | read 1      | read 2      |
    caller             | compute 0   | compute 1   | compute 2
    buffers     a        b             a             b

There are two buffers, whatever the size of the input. While one is filled, there is
what the source itself gives: nothing for a mapped file, the same rows for a dataset,
pieces of rows for a generator.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from divisible.communication.errors import TIMEOUT
from divisible.streaming.errors import StoreError
from divisible.streaming.large_input import LargeInput
from divisible.streaming.segments import ranges
from divisible.streaming.thread_waits import wait_for

_N_BUFFERS = 2


class Segment(NamedTuple):
    """Some rows of an input.

    Attributes:
        start: The first row.
        stop: The row behind the last.
        rows: The rows, until the next segment is asked for.
    """

    start: int
    stop: int
    rows: np.ndarray


def read_ahead(
    source: LargeInput, n_rows: int, dtype: Any, timeout: float = TIMEOUT
) -> Iterator[Segment]:
    """Yields the segments of an input, from the first to the last.

    Args:
        source: The input.
        n_rows: Rows of a segment.
        dtype: Dtype of the segments, to which a thread converts the rows.
        timeout: Seconds to wait for a segment.

    Raises:
        StoreError: If the thread has failed; the error of the source is its cause, with
            the traceback in the thread.
        TimeoutError: If a segment takes longer to read.

    Example:
        >>> large = LargeInput(np.arange(10))
        >>> [each.rows.tolist() for each in read_ahead(large, 4, np.float32)]
        [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0]]
    """
    segments = list(ranges(len(source), n_rows))
    rows = max((stop - start for start, stop in segments), default=0)
    shape = (rows, *source.shape[1:])
    free: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
    for _ in range(min(_N_BUFFERS, len(segments))):
        free.put(np.empty(shape, dtype))
    read: queue.SimpleQueue[_Read] = queue.SimpleQueue()
    thread = threading.Thread(
        target=_serve, args=(source, segments, free, read), daemon=True
    )
    thread.start()
    try:
        for start, stop in segments:
            found = _next(read, thread, timeout, f"rows {start} to {stop - 1}")
            yield Segment(start, stop, found[: stop - start])
            free.put(found)
            del found
    finally:
        # If the caller stops early, the thread ends before it reads another segment.
        free.put(None)


class _Read(NamedTuple):
    """A buffer that was read, or the error of the thread."""

    buffer: np.ndarray | None
    error: BaseException | None


def _next(
    read: queue.SimpleQueue, thread: threading.Thread, timeout: float, what: str
) -> np.ndarray:
    """Waits for the next buffer."""
    found: list[_Read] = []

    def done(seconds: float) -> bool:
        try:
            found.append(read.get(timeout=seconds) if seconds else read.get_nowait())
        except queue.Empty:
            return False
        return True

    ended = f"the thread that reads the input has ended before {what}"
    wait_for(done, thread, timeout, f"{what} of the input", ended)
    (buffer, error), *_ = found
    if error is not None:
        raise StoreError(
            f"{what} of the input could not be read: {type(error).__name__}: {error}"
        ) from error
    return buffer


def _serve(
    source: LargeInput,
    segments: Sequence[tuple[int, int]],
    free: queue.SimpleQueue,
    read: queue.SimpleQueue,
) -> None:
    """Reads the segments into free buffers, until none is left or wanted."""
    try:
        parts = iter(source.parts(segments))
        for start, stop in segments:
            # A buffer first: the rows of a dataset are in memory, too, while they wait.
            buffer = free.get()
            if buffer is None:
                return
            rows = next(parts)
            np.copyto(buffer[: stop - start], rows, casting="same_kind")
            # References are dropped before the caller goes on.
            del rows
            read.put(_Read(buffer, None))
            del buffer
    except BaseException as error:
        # The waiting caller raises it.
        read.put(_Read(None, error))
