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
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from divisible.streaming.errors import StoreError

# Of Linux: begin to write a range of a file, and wait for it.
_BEGIN, _BEGIN_AND_WAIT = 2, 7
# How many released parts may still be in memory, of all arrays of a process.
_LAG = 4
# How many bytes of a file are in memory at a time for those who know no segments.
_PART = 8 * 2**20
#: Types of file systems whose files lie in memory.
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


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
        >>> mapped = MappedArray((1000, 100), 'f', usable_directory(), 'an example')
        >>> mapped.prefetch(0, 500)
        >>> mapped.array[:500] = 1
        >>> mapped.release(0, 500, written=True)
        >>> float(mapped.array.sum())
        50000.0
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, directory: Path, what: str
    ) -> None:
        dtype = np.dtype(dtype)
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._map = _mapped_file(n_bytes, directory, what)
        self.array = np.frombuffer(self._map.pages, dtype).reshape(shape)
        self._row_bytes = n_bytes // max(shape[0], 1)
        _of_arrays[id(self.array)] = self

    @property
    def n_bytes(self) -> int:
        """How many bytes the file has."""
        return self.array.nbytes

    def prefetch(self, start: int, stop: int) -> None:
        """Begins to read rows, and does not wait for them."""
        first = start * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start and hasattr(mmap, "MADV_WILLNEED"):
            last = stop * self._row_bytes
            self._map.pages.madvise(mmap.MADV_WILLNEED, first, last - first)

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
            last = self.array.nbytes
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
    """An open file and its pages."""

    def __init__(self, descriptor: int, pages: mmap.mmap, what: str) -> None:
        self.descriptor = descriptor
        self.pages = pages
        self._what = what
        weakref.finalize(self, os.close, descriptor)

    def write_back(self, first: int, last: int, wait: bool) -> None:
        """Writes a range of bytes to the disk.

        Raises:
            StoreError: If the disk does not take them.
        """
        try:
            self._write_back(first, last, wait)
        except OSError as error:
            raise StoreError(
                f"{self._what}: {last - first} bytes of its file did not reach the"
                f" disk: {_cause(error)}"
            ) from error

    def _write_back(self, first: int, last: int, wait: bool) -> None:
        flags = _BEGIN_AND_WAIT if wait else _BEGIN
        write = getattr(_libc(), "sync_file_range", None)
        if write is not None:
            if write(self.descriptor, first, last - first, flags) == 0:
                return
            number = ctypes.get_errno()
            # Where it is not known, as on a file system in user space, the other way.
            if number not in (errno.ENOSYS, errno.ESPIPE, errno.EINVAL):
                raise OSError(number, os.strerror(number))
        if wait:
            self.pages.flush(first, last - first)

    def drop(self, first: int, last: int) -> None:
        """Takes a range of bytes, which is on disk, out of memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED, first, last - first)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(
                self.descriptor, first, last - first, os.POSIX_FADV_DONTNEED
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


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "sync_file_range"):
        libc.sync_file_range.argtypes = (
            ctypes.c_int,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_uint,
        )
    return libc


def _mapped_file(n_bytes: int, directory: Path, what: str) -> _File:
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(n_bytes, 1))
            else:
                file.truncate(max(n_bytes, 1))
            pages = mmap.mmap(file.fileno(), max(n_bytes, 1))
            # Its own descriptor, which stays open.
            return _File(os.dup(file.fileno()), pages, f"{what} in {directory}")
    except OSError as error:
        raise StoreError(
            f"{what}: cannot keep its {n_bytes} bytes in a file in {directory}, where"
            f" {_free(directory)} are free: {_cause(error)}"
        ) from error


def _free(directory: Path) -> str:
    try:
        return f"{shutil.disk_usage(directory).free} bytes"
    except OSError:
        return "unknown bytes"


def _cause(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}. Give another directory, or free some space"
    if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
        return (
            f"{error.strerror}. Its file system cannot map files into memory: give a"
            f" directory on a local disk"
        )
    return str(error.strerror or error)


def usable_directory(directory: str | os.PathLike | None = None) -> Path:
    """Returns a directory for files that are to be larger than memory.

    Args:
        directory: The one that the user named; by default that for temporary files, or
            ``/var/tmp`` if that lies in memory.

    Raises:
        StoreError: If it is none, cannot be written to, or lies in memory.
    """
    named = directory is not None
    path = Path(directory if named else tempfile.gettempdir())
    if not named and file_system(path) in _IN_MEMORY:
        path = Path("/var/tmp")
    if not path.is_dir():
        raise StoreError(f"directory={str(path)!r}: there is no such directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise StoreError(f"directory={str(path)!r} cannot be written to")
    kind = file_system(path)
    if kind in _IN_MEMORY:
        raise StoreError(
            f"directory={str(path)!r} is on a {kind}, which lies in memory itself:"
            f" give a directory on a disk"
        )
    return path


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Returns the type of the file system of a path; empty if nobody says."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    path = path.resolve()
    longest, kind = -1, ""
    for line in lines:
        _, place, found, *_ = line.split(" ")
        place = Path(place.encode().decode("unicode_escape"))
        # Of several at one place the last one counts.
        is_above = place == path or place in path.parents
        if is_above and len(place.parts) >= longest:
            longest, kind = len(place.parts), found
    return kind
