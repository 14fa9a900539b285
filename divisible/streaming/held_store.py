"""A file for bytes that leave memory for a while.

::

    put(a)     reserve a place of the file --> |  write a; free a |
    fetch(k)   (ahead of its use)          --> |  read            |  a thread,
    take(k)    wait until it is read, free the place                 in this order

The file has no name from the start, so that nothing is left of it however the process
ends. Room is reserved before anything is written: a disk that is full says so at once.
"""

from __future__ import annotations

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

from divisible.communication.errors import TIMEOUT
from divisible.streaming.places import Places

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
        self, directory: str | os.PathLike | None = None, timeout: float = TIMEOUT
    ) -> None:
        self.directory = check_directory(directory)
        self._timeout = timeout
        # Closed with the store.
        self._file = tempfile.TemporaryFile(dir=self.directory)  # noqa: SIM115
        self._places = Places()
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
        return self._places.size

    def put(self, arrays: list[np.ndarray]) -> int:
        """Begins to write arrays; returns the key under which they come back.

        The caller must not keep the arrays, or nothing is freed. Only one call's
        arrays are under way at a time: a second one waits for the first.

        Args:
            arrays: Of bytes, one-dimensional and contiguous.

        Raises:
            OSError: If the disk is full, or it could not be written before.
            TimeoutError: If it does not answer.
            RuntimeError: If the thread failed otherwise, or has ended.
        """
        if self._last is not None:
            self._wait(self._last)
        sizes = [array.nbytes for array in arrays]
        entry = _Entry(self._places.take(sum(sizes), self._grow), sizes)
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
            MemoryError: If there was no memory for it.
            TimeoutError: If the disk does not answer.
            RuntimeError: If the thread failed otherwise, or has ended.
        """
        self.fetch(key)
        entry = self._entries.pop(key)
        self._wait(entry, entry.was_read)
        self._places.give_back(entry.offset, entry.n_bytes)
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

    def _grow(self, size: int, new_size: int) -> None:
        """Reserves more bytes of the disk at the end of the file."""
        try:
            if new_size > size:
                os.posix_fallocate(self._file.fileno(), size, new_size - size)
        except OSError as error:
            raise OSError(
                error.errno or errno.ENOSPC,
                f"{self.directory} has no room for {new_size - size} more bytes that"
                f" are to be held there: {size} bytes of this process are there"
                f" already, {shutil.disk_usage(self.directory).free} are free"
                f" ({error.strerror}). Give another directory, hold less (more ranks,"
                f" fewer microbatches in flight) or recompute it (checkpoint)",
            ) from error

    def _wait(self, entry: _Entry, event: threading.Event | None = None) -> None:
        event = entry.was_written if event is None else event
        end = time.monotonic() + self._timeout
        while not event.wait(_SECONDS_BETWEEN_LOOKS):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"waited {self._timeout:.0f} s for the disk of {self.directory}"
                )
            if not self._thread.is_alive() and not event.is_set():
                raise RuntimeError(
                    f"the thread that writes and reads the file in {self.directory} has"
                    f" ended: make a new Pipeline"
                )
        if entry.error is not None:
            raise self._loss_of(entry, entry.error) from entry.error

    def _loss_of(self, entry: _Entry, error: BaseException) -> Exception:
        """Returns an error that says what is lost, and why."""
        lost = (
            f"the {entry.n_bytes} bytes at {entry.offset} of the file in"
            f" {self.directory} are lost"
        )
        if isinstance(error, OSError):
            name = errno.errorcode.get(error.errno or 0)
            words = f"{error.strerror or error}" + (f" ({name})" if name else "")
            return OSError(error.errno or errno.EIO, f"{lost}: {words}")
        if isinstance(error, MemoryError):
            return MemoryError(
                f"{lost}: there is no memory to read them into: hold less (more ranks,"
                f" fewer microbatches in flight) or recompute it (checkpoint)"
            )
        return RuntimeError(f"{lost}: {type(error).__name__}: {error}")


class _Entry:
    """The arrays put at one time: their place, and whether they came back."""

    def __init__(self, offset: int, sizes: list[int]) -> None:
        self.offset, self.sizes, self.n_bytes = offset, sizes, sum(sizes)
        self.arrays: list[np.ndarray] = []
        self.was_written, self.was_read = threading.Event(), threading.Event()
        self.error: BaseException | None = None
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
        except BaseException as error:
            # Whoever waits raises it. The thread goes on, for what else is held.
            entry.error = error
        finally:
            # Freed before whoever waits goes on.
            job = entry = arrays = None
            done.set()


def _write(file: int, entry: _Entry, arrays: list[np.ndarray]) -> None:
    offset = entry.offset
    for array in arrays:
        left = memoryview(array)
        while left:
            n_bytes = os.pwrite(file, left, offset)
            left, offset = left[n_bytes:], offset + n_bytes


def _read(file: int, entry: _Entry) -> list[np.ndarray]:
    offset = entry.offset
    arrays = [np.empty(size, np.uint8) for size in entry.sizes]
    for array in arrays:
        left = memoryview(array)
        while left:
            n_bytes = os.preadv(file, [left], offset)
            if not n_bytes:
                raise OSError(errno.EIO, "the file ends before them")
            left, offset = left[n_bytes:], offset + n_bytes
    return arrays
