"""A file for bytes that leave memory for a while.

::

    put(a)     reserve a slot of the file  --> |  write a; free a     |
    fetch(k)   (ahead of its use)          --> |  read; free the slot |  a thread,
    take(k)    wait until it is read                                     in this order

The file has no name from the start, so that nothing is left of it however the process
ends. Room is reserved before anything is written: a disk that is full says so at once.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import queue
import shutil
import tempfile
import threading
import time
from typing import Any

import numpy as np

# How long a wait sleeps before it looks whether the thread is still alive.
_SECONDS_BETWEEN_LOOKS = 1.0


class HeldStore:
    """Holds arrays of bytes in a file, written and read by a thread.

    Args:
        directory: Where the file is to be; ``None`` for the place of temporary files.
        timeout (float): Seconds to wait for the disk before giving up.

    Raises:
        OSError: If no file can be made there.

    Example:
        >>> with HeldStore() as store:
        ...     key = store.put([np.arange(3, dtype=np.uint8)])
        ...     store.fetch(key)
        ...     store.take(key)
        [array([0, 1, 2], dtype=uint8)]
    """

    def __init__(
        self, directory: str | os.PathLike | None = None, timeout: float = 300.0
    ) -> None:
        self.directory = check_directory(directory)
        self._timeout = timeout
        # Closed with the store.
        self._file = tempfile.TemporaryFile(dir=self.directory)  # noqa: SIM115
        self._size = 0
        # Slots that nobody uses, by size; those in use and their parts, by key.
        self._free: list[tuple[int, int]] = []
        self._keys = itertools.count()
        self._entries: dict[int, _Entry] = {}
        self._last: _Entry | None = None
        # A thread of its own for each store; without reference to the store, which is
        # closed when nobody has it any more.
        self._work: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        arguments = self._file, self._work
        self._thread = threading.Thread(target=_serve, args=arguments, daemon=True)
        self._thread.start()

    @property
    def n_bytes(self) -> int:
        """The size of the file."""
        return self._size

    def put(self, arrays: list[np.ndarray]) -> int:
        """Begins to write arrays; returns the key under which they come back.

        The caller must not keep the arrays, or nothing is freed. Only one call's
        arrays are under way at a time: a second one waits for the first.

        Args:
            arrays: Of bytes, one-dimensional and contiguous.

        Raises:
            OSError: If the disk is full, or it could not be written before.
            TimeoutError: If it does not answer.
        """
        if self._last is not None:
            self._wait(self._last)
        sizes = [array.nbytes for array in arrays]
        slot = self._reserve(sum(sizes))
        entry = _Entry(slot, sizes)
        key = next(self._keys)
        self._entries[key] = self._last = entry
        self._work.put(_Job(entry, arrays))
        return key

    def fetch(self, key: int) -> None:
        """Begins to read what was put under a key."""
        entry = self._entries[key]
        if not entry.is_asked_for:
            entry.is_asked_for = True
            self._work.put(_Job(entry, None))

    def take(self, key: int) -> list[np.ndarray]:
        """Returns what was put under a key, and forgets it.

        Raises:
            OSError: If it could not be written or read.
            TimeoutError: If the disk does not answer.
        """
        self.fetch(key)
        entry = self._entries.pop(key)
        self._wait(entry, entry.was_read)
        bisect.insort(self._free, entry.slot)
        return entry.arrays

    def clear(self) -> None:
        """Forgets everything; the room in the file is used again."""
        for key in list(self._entries):
            self.take(key)

    def close(self) -> None:
        """Gives the room on the disk back; does nothing a second time."""
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join(self._timeout)
        self._file.close()

    def __enter__(self) -> HeldStore:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # The thread ends, and with it the last reference to the file.
        if hasattr(self, "_work"):
            self._work.put(None)

    def _reserve(self, n_bytes: int) -> tuple[int, int]:
        """Returns size and offset of a slot; the smallest free one that is enough."""
        place = bisect.bisect_left(self._free, (n_bytes, 0))
        if place < len(self._free):
            return self._free.pop(place)
        try:
            if n_bytes:
                os.posix_fallocate(self._file.fileno(), self._size, n_bytes)
        except OSError as error:
            raise OSError(
                error.errno or errno.ENOSPC,
                f"{self.directory} has no room for {n_bytes} bytes that are to be held"
                f" there: {self._size} bytes of this process are there already,"
                f" {shutil.disk_usage(self.directory).free} are free"
                f" ({error.strerror}). Give another directory, hold less (more ranks,"
                f" fewer microbatches in flight) or recompute it (checkpoint)",
            ) from error
        slot = n_bytes, self._size
        self._size += n_bytes
        return slot

    def _wait(self, entry: _Entry, event: threading.Event | None = None) -> None:
        event = entry.was_written if event is None else event
        end = time.monotonic() + self._timeout
        while not event.wait(_SECONDS_BETWEEN_LOOKS):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"waited {self._timeout:.0f} s for the disk of {self.directory}"
                )
        if entry.error is not None:
            n_bytes, offset = entry.slot
            raise OSError(
                entry.error.errno or errno.EIO,
                f"the {n_bytes} bytes at {offset} of the file in {self.directory} are"
                f" lost: {entry.error.strerror or entry.error}",
            ) from entry.error


class _Entry:
    """The arrays put at one time: their place, and whether they came back."""

    def __init__(self, slot: tuple[int, int], sizes: list[int]) -> None:
        self.slot, self.sizes = slot, sizes
        self.arrays: list[np.ndarray] = []
        self.was_written, self.was_read = threading.Event(), threading.Event()
        self.error: OSError | None = None
        self.is_asked_for = False


class _Job:
    """Arrays to write, or ``None`` to read them again."""

    def __init__(self, entry: _Entry, arrays: list[np.ndarray] | None) -> None:
        self.entry, self.arrays = entry, arrays


def check_directory(directory: str | os.PathLike | None) -> str:
    """Returns the directory for such files, after a try whether one can be made there.

    Raises:
        ValueError: If none can be made.
    """
    path = tempfile.gettempdir() if directory is None else os.fspath(directory)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ValueError(
            f"no file can be made in {path!r}, where activations are to be held:"
            f" {error.strerror}. Give a directory that exists and can be written"
        ) from error
    return path


def _serve(file: Any, work: queue.SimpleQueue) -> None:
    """Writes and reads, until there is nothing more to come."""
    while True:
        job = work.get()
        if job is None:
            return
        entry, arrays = job.entry, job.arrays
        done = entry.was_read if arrays is None else entry.was_written
        try:
            if entry.error is None:
                if arrays is None:
                    entry.arrays = _read(file.fileno(), entry)
                else:
                    _write(file.fileno(), entry, arrays)
        except OSError as error:
            entry.error = error
        finally:
            # Freed before whoever waits goes on.
            job = entry = arrays = None
            done.set()


def _write(file: int, entry: _Entry, arrays: list[np.ndarray]) -> None:
    _, offset = entry.slot
    for array in arrays:
        left = memoryview(array)
        while left:
            n_bytes = os.pwrite(file, left, offset)
            left, offset = left[n_bytes:], offset + n_bytes


def _read(file: int, entry: _Entry) -> list[np.ndarray]:
    _, offset = entry.slot
    arrays = [np.empty(size, np.uint8) for size in entry.sizes]
    for array in arrays:
        left = memoryview(array)
        while left:
            n_bytes = os.preadv(file, [left], offset)
            if not n_bytes:
                raise OSError(errno.EIO, "the file ends before them")
            left, offset = left[n_bytes:], offset + n_bytes
    return arrays
