"""Arrays in files that are mapped into memory, of which a part is resident at a time.

The pages of a mapped file are the kernel's cache of it, and count as memory of whoever
touched them, also in a control group. Left to itself the kernel drops the pages that
were touched longest ago, which, in passes from the first row to the last one, are those
that are needed next. So each pass says what it needs next and what it has done with::

    rows      0..255     256..511     512..767     768..1023
              released   computed     fetched      on disk
              written    with         meanwhile
              back

What was written has to reach the disk before its page can go. That is begun when rows
are released, and waited for a little later, so that it goes on beside computation.

The files have no names: they are gone when the process ends, however it ends.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from divisible.streaming.backing_file import (
    DO_NOT_NEED,
    WILL_NEED,
    backing_file,
    cause,
    check,
    libc,
    refusal,
)
from divisible.streaming.errors import StoreError

# Flags of Linux: begin to write a range of a file, and wait for it.
_BEGIN, _BEGIN_AND_WAIT = 2, 7
# The flag of msync to wait until pages are written.
_SYNCHRONOUSLY = 16 if sys.platform == "darwin" else 4
# How many released parts may still be in memory, of all arrays of a process.
_LAG = 4
# How many bytes of a file are in memory at a time for those who know no segments.
_PART = 8 * 2**20


class MappedArray:
    """An array in a file without a name.

    All its bytes are reserved at once, so a disk that is too small is met here, and not
    as a signal in the middle of a computation. They are zero.

    Args:
        shape: Of the array.
        dtype: Of the array.
        directory: Where the file is made.
        what (str): For errors: whose array it is.

    Attributes:
        array (numpy.ndarray): All of it; what is touched becomes resident.

    Raises:
        StoreError: If there cannot be such a file, with the bytes and the cause.

    Example:
        >>> from divisible.streaming.directories import usable_directory
        >>> mapped = MappedArray((1000, 100), 'f', usable_directory(), 'an example')
        >>> mapped.prefetch(0, 500)
        >>> mapped.array[:500] = 1
        >>> mapped.release(0, 500, written=True)
        >>> float(mapped.array.sum())
        50000.0
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        directory: str | os.PathLike,
        what: str,
    ) -> None:
        dtype = np.dtype(dtype)
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._map = _File(n_bytes, directory, what)
        n_items = n_bytes // dtype.itemsize
        self.array = np.frombuffer(self._map.pages, dtype, n_items).reshape(shape)
        self._row_bytes = n_bytes // max(shape[0], 1)
        _of_arrays[id(self.array)] = self

    @property
    def n_bytes(self) -> int:
        """How many bytes the file has."""
        return self.array.nbytes

    def prefetch(self, start: int, stop: int) -> None:
        """Begins to read rows, and does not wait for them."""
        first = start * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            self._map.prefetch(first, stop * self._row_bytes)

    def release(self, start: int, stop: int, written: bool) -> None:
        """Lets the pages of rows go.

        Pages that other rows share stay.

        Args:
            start (int): The first row.
            stop (int): One after the last row.
            written (bool): Whether they were written to.
        """
        page, n_rows = mmap.PAGESIZE, len(self.array)
        first = -(-start * self._row_bytes // page) * page
        last = stop * self._row_bytes // page * page
        if stop == n_rows:
            last = self._map.n_bytes
        if last > first:
            _released.add(self._map, first, last, written)

    def parts(self, written: bool) -> Iterator[tuple[int, int]]:
        """Yields parts of a few MiB, from the first row to the last.

        Args:
            written (bool): Whether they are written to.

        Yields:
            As :func:`passing` does.
        """
        rows = max(1, _PART // max(self._row_bytes, 1))
        n_rows = len(self.array)
        parts = ((i, min(i + rows, n_rows)) for i in range(0, n_rows, rows))
        return passing(parts, {self: written})


# By the id of the array: as long as one is here its array is alive.
_of_arrays: weakref.WeakValueDictionary[int, MappedArray] = (
    weakref.WeakValueDictionary()
)


def mapped_array(array: object) -> MappedArray | None:
    """Returns the file of an array; ``None`` if it is in memory, or a part of one.

    Example:
        >>> from divisible.streaming.directories import usable_directory
        >>> mapped = MappedArray((1000, 100), 'f', usable_directory(), 'an example')
        >>> mapped_array(mapped.array) is mapped, mapped_array(mapped.array[:10])
        (True, None)
    """
    return _of_arrays.get(id(array))


def parts_of(array: Any, written: bool = False) -> Iterator[Any]:
    """Yields an array as it is or, if it is on disk, a few MiB of it at a time.

    Args:
        array: Of any library.
        written (bool): Whether the parts are written to.

    Example:
        >>> from divisible.streaming.directories import usable_directory
        >>> mapped = MappedArray((3000, 1000), 'f', usable_directory(), 'an example')
        >>> [part.shape for part in parts_of(mapped.array)]
        [(2097, 1000), (903, 1000)]
        >>> [part.shape for part in parts_of(np.zeros((3000, 1000)))]
        [(3000, 1000)]
    """
    file = mapped_array(array)
    if file is None:
        yield array
        return
    for start, stop in file.parts(written):
        yield array[start:stop]


def passing(
    ranges: Iterable[tuple[int, int]], files: Mapping[MappedArray, bool]
) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows of some files, and sees to what is in memory.

    Args:
        ranges: The first row and the one behind the last, of each.
        files: Whether each is written to.

    Yields:
        The first row and the one behind the last. The next range is fetched ahead;
        when it is asked for, the one before is let go.
    """
    waiting = list(ranges)
    for file in files:
        for first in waiting[:1]:
            file.prefetch(*first)
    for number, (start, stop) in enumerate(waiting):
        if number + 1 < len(waiting):
            for file in files:
                file.prefetch(*waiting[number + 1])
        yield start, stop
        for file, is_written in files.items():
            file.release(start, stop, is_written)


class _File:
    """A place of a file, and its pages.

    Args:
        n_bytes (int): Bytes of the place.
        directory: The directory of the file.
        what (str): For errors: whose array it is.

    Attributes:
        n_bytes (int): Bytes of the pages.
        pages: The memory.
    """

    def __init__(self, n_bytes: int, directory: str | os.PathLike, what: str) -> None:
        self._what, self._directory = what, directory
        try:
            self._file = backing_file(directory)
            self._start, self.pages = self._file.map(max(n_bytes, 1))
        except OSError as error:
            raise refusal(n_bytes, directory, what, error) from error
        self.n_bytes = len(self.pages)
        self._address = ctypes.addressof(self.pages)

    def prefetch(self, first: int, last: int) -> None:
        """Begins to read a range of bytes."""
        if WILL_NEED is not None:
            check(libc().madvise(self._address + first, last - first, WILL_NEED))

    def write_back(self, first: int, last: int, wait: bool) -> None:
        """Writes a range of bytes to the disk.

        Raises:
            StoreError: If the disk does not take them.
        """
        try:
            self._write_back(first, last, wait)
        except OSError as error:
            raise StoreError(
                f"{self._what}: {last - first} bytes of the file in {self._directory}"
                f" did not reach the disk: {cause(error)}"
            ) from error

    def _write_back(self, first: int, last: int, wait: bool) -> None:
        flags = _BEGIN_AND_WAIT if wait else _BEGIN
        write = getattr(libc(), "sync_file_range", None)
        if write is not None:
            start = self._start + first
            if write(self._file.descriptor, start, last - first, flags) == 0:
                return
            number = ctypes.get_errno()
            # Where it is not known, as on a file system in user space, the other way.
            if number not in (errno.ENOSYS, errno.ESPIPE, errno.EINVAL):
                raise OSError(number, os.strerror(number))
        if wait:
            check(libc().msync(self._address + first, last - first, _SYNCHRONOUSLY))

    def drop(self, first: int, last: int) -> None:
        """Takes a range of bytes, which is on disk, out of memory."""
        if DO_NOT_NEED is not None:
            check(libc().madvise(self._address + first, last - first, DO_NOT_NEED))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(
                self._file.descriptor,
                self._start + first,
                last - first,
                os.POSIX_FADV_DONTNEED,
            )


class _Released:
    """The pages released a moment ago, which are being written to the disk."""

    def __init__(self) -> None:
        self._parts: collections.deque[tuple] = collections.deque()

    def add(self, file: _File, first: int, last: int, written: bool) -> None:
        """Begins to write a range of bytes; those released before are let go."""
        if written:
            file.write_back(first, last, wait=False)
        part = (weakref.ref(file), first, last)
        for i, (*other, was_written) in enumerate(self._parts):
            if tuple(other) == part:
                written = written or was_written
                del self._parts[i]
                break
        self._parts.append((*part, written))
        while len(self._parts) > _LAG:
            self._drop(*self._parts.popleft())

    def drop_all(self) -> None:
        """Lets everything go that is waiting."""
        while self._parts:
            self._drop(*self._parts.popleft())

    @staticmethod
    def _drop(file: Any, first: int, last: int, written: bool) -> None:
        file = file()
        if file is not None:
            if written:
                file.write_back(first, last, wait=True)
            file.drop(first, last)


_released = _Released()


def drop_released() -> None:
    """Waits until all that was released is on disk and out of memory."""
    _released.drop_all()
