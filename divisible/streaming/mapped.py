"""Arrays in files that are mapped into memory, with a part at a time resident.

The pages of a mapped file are the kernel's cache of the file. They count as memory of
the process that touched them, also in a control group. By default the kernel drops the
pages that were touched longest ago. In passes from the first row to the last one, these
are the pages that are needed next. So each pass prefetches its next rows, and releases
the rows that it has used::

    rows      0..255     256..511     512..767     768..1023
              released   computed     fetched      on disk
              written    with         meanwhile
              back

Written pages have to reach the disk before they can be dropped. The transfer is begun
when rows are released, and waited for a little later, so that it overlaps computation.

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
# Number of released parts that may still be in memory, for all arrays of a process.
_LAG = 4
# Bytes of a file that are in memory at a time for callers that use no segments.
_PART = 8 * 2**20


class MappedArray:
    """An array in a file without a name.

    All its bytes are reserved at once. So a disk that is too small raises an error
    here, and not a signal in the middle of a computation. All elements are zero at
    first.

    Args:
        shape: Shape of the array.
        dtype: Dtype of the array.
        directory: Directory of the file.
        what (str): Name of the array for errors.

    Attributes:
        array (numpy.ndarray): The whole array. Touched pages become resident.

    Raises:
        StoreError: If there cannot be such a file. The message has the bytes and the
            cause.

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
        """Number of bytes of the array."""
        return self.array.nbytes

    def prefetch(self, start: int, stop: int) -> None:
        """Begins to read rows, without waiting for them."""
        first = start * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            self._map.prefetch(first, stop * self._row_bytes)

    def release(self, start: int, stop: int, written: bool) -> None:
        """Releases the pages of rows from memory.

        Pages that other rows share stay.

        Args:
            start (int): The first row.
            stop (int): The row behind the last.
            written (bool): Whether the rows were written to.
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
            written (bool): Whether the parts are written to.

        Yields:
            The first row of a part, and the one behind the last; see :func:`passing`.
        """
        rows = max(1, _PART // max(self._row_bytes, 1))
        n_rows = len(self.array)
        parts = ((i, min(i + rows, n_rows)) for i in range(0, n_rows, rows))
        return passing(parts, {self: written})


# Keys are ids of arrays. An entry keeps its array alive, so the id is not reused.
_of_arrays: weakref.WeakValueDictionary[int, MappedArray] = (
    weakref.WeakValueDictionary()
)


def mapped_array(array: object) -> MappedArray | None:
    """Returns the file of a whole array; ``None`` for a part of one, or in memory.

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
        array: An array of any library.
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
    """Yields ranges of rows of some files, which are fetched ahead and released.

    Args:
        ranges: For each range the first row and the one behind the last.
        files: For each file whether it is written to.

    Yields:
        The first row of a range and the one behind the last. The next range is fetched
        ahead. When it is requested, the one before is released.
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
        what (str): Name of the array for errors.

    Attributes:
        n_bytes (int): Bytes of the pages.
        pages: The memory of the pages.
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
            # A file system in user space, for example, does not know this call.
            if number not in (errno.ENOSYS, errno.ESPIPE, errno.EINVAL):
                raise OSError(number, os.strerror(number))
        if wait:
            check(libc().msync(self._address + first, last - first, _SYNCHRONOUSLY))

    def drop(self, first: int, last: int) -> None:
        """Drops a range of bytes, which is on disk, from memory."""
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
    """The pages that were released last, and are being written to the disk."""

    def __init__(self) -> None:
        self._parts: collections.deque[tuple] = collections.deque()

    def add(self, file: _File, first: int, last: int, written: bool) -> None:
        """Begins to write a range of bytes; ranges released long before are dropped."""
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
        """Drops all released ranges from memory."""
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
    """Waits until all released pages are on disk and out of memory."""
    _released.drop_all()
