"""A file for bytes that leave memory for a while.

::

    put(a)     reserve a place of the file --> |  write a; free a |
    fetch(k)   (ahead of its use)          --> |  read            |  a thread,
    take(k)    wait until it is read, free the place                 in this order

The file never has a name, so nothing of it remains, however the process ends. Room is
reserved before anything is written, so a full disk is reported at once.
"""

from __future__ import annotations

import errno
import itertools
import os
import queue
import shutil
import tempfile
import threading
from typing import Any

import numpy as np

from divisible.communication.errors import TIMEOUT
from divisible.streaming.places import Places
from divisible.streaming.thread_waits import wait_for


class HeldStore:
    """Holds arrays of bytes in a file, written and read by a thread.

    Args:
        directory: Directory of the file; ``None`` for that of temporary files.
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
        # The file is closed with the store.
        self._file = tempfile.TemporaryFile(dir=self.directory)  # noqa: SIM115
        self._places = Places()
        self._keys = itertools.count()
        self._entries: dict[int, _Entry] = {}
        self._last: _Entry | None = None
        # Each store has its own thread, without a reference to the store. So the store
        # is closed when it is no longer referenced.
        self._work: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        arguments = self._file, self._work
        self._thread = threading.Thread(target=_serve, args=arguments, daemon=True)
        self._thread.start()

    @property
    def n_bytes(self) -> int:
        """The size of the file."""
        return self._places.size

    def put(self, arrays: list[np.ndarray]) -> int:
        """Begins to write arrays, and returns a key by which they can be read again.

        The caller must not keep the arrays, or nothing is freed. Only the arrays of one
        call are written at a time: a second call waits for the first.

        Args:
            arrays: Contiguous arrays of bytes with one dimension.

        Raises:
            OSError: If the disk is full, or an earlier write has failed.
            TimeoutError: If the disk does not answer.
            RuntimeError: If the thread failed for another reason, or has ended.
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
        """Begins to read the arrays of a key."""
        entry = self._entries[key]
        if not entry.is_asked_for:
            entry.is_asked_for = True
            self._work.put(_Job(entry, None))

    def take(self, key: int) -> list[np.ndarray]:
        """Returns the arrays of a key, and frees their place.

        Raises:
            OSError: If they could not be written or read.
            MemoryError: If there was no memory for them.
            TimeoutError: If the disk does not answer.
            RuntimeError: If the thread failed for another reason, or has ended.
        """
        self.fetch(key)
        entry = self._entries.pop(key)
        self._wait(entry, entry.was_read)
        self._places.give_back(entry.offset, entry.n_bytes)
        return entry.arrays

    def clear(self) -> None:
        """Frees all places; the file's room is used again."""
        for key in list(self._entries):
            self.take(key)

    def close(self) -> None:
        """Returns the room to the disk; a second call does nothing."""
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
                f" fewer microbatches in flight) or recompute it (recompute='always')",
            ) from error

    def _wait(self, entry: _Entry, event: threading.Event | None = None) -> None:
        event = entry.was_written if event is None else event
        where = self.directory
        ended = (
            f"the thread that writes and reads the file in {where} has ended: make a"
            f" new Pipeline"
        )
        what = f"the disk of {where}"
        wait_for(event.wait, self._thread, self._timeout, what, ended)
        if entry.error is not None:
            raise self._loss_of(entry, entry.error) from entry.error

    def _loss_of(self, entry: _Entry, error: BaseException) -> Exception:
        """Returns an error with the lost bytes, and the reason."""
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
                f" fewer microbatches in flight) or recompute it (recompute='always')"
            )
        return RuntimeError(f"{lost}: {type(error).__name__}: {error}")


class _Entry:
    """The arrays of one call of ``put``, their place, and what was done to them."""

    def __init__(self, offset: int, sizes: list[int]) -> None:
        self.offset, self.sizes, self.n_bytes = offset, sizes, sum(sizes)
        self.arrays: list[np.ndarray] = []
        self.was_written, self.was_read = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.is_asked_for = False


class _Job:
    """A request to write arrays, or to read them again if ``arrays`` is ``None``."""

    def __init__(self, entry: _Entry, arrays: list[np.ndarray] | None) -> None:
        self.entry, self.arrays = entry, arrays


def check_directory(directory: str | os.PathLike | None) -> str:
    """Returns the directory for such files, after making one there as a test.

    Raises:
        ValueError: If no file can be made there.
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
    """Writes and reads, until the end of the store."""
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
            # The waiting caller raises it. The thread goes on with other requests.
            entry.error = error
        finally:
            # References are dropped before the waiting caller goes on.
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
