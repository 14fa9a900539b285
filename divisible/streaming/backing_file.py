"""A file without a name in a directory, which has a place for each of many arrays.

::

    the file   | array of W | gradient of W | array of V | free | state m of W |
                     |             |              |                  |
    memory       pages of W    pages of gW    pages of V        pages of m

All arrays share one descriptor, because a process often may have only 1,024. Python's
own ``mmap`` would keep another one for each array.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import functools
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from typing import Any

from divisible.streaming.errors import StoreError
from divisible.streaming.places import Places

# Flags of Linux: keep the size of a file, and return a part of it to the disk.
_PUNCH_HOLE = 1 | 2
_ZEROS = bytes(2**20)
_FAILED = ctypes.c_void_p(-1).value
# Advice to the kernel, which a system may not know.
WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)
DO_NOT_NEED = getattr(mmap, "MADV_DONTNEED", None)


@functools.cache
def libc() -> Any:
    """Returns the C library, with the argument types of the functions that are used."""
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number, offset = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int64,
    )
    types = {
        "mmap": (pointer, size, number, number, number, offset),
        "munmap": (pointer, size),
        "madvise": (pointer, size, number),
        "msync": (pointer, size, number),
        "sync_file_range": (number, offset, offset, ctypes.c_uint),
        "fallocate": (number, number, offset, offset),
    }
    for name, arguments in types.items():
        if hasattr(library, name):
            getattr(library, name).argtypes = arguments
    library.mmap.restype = pointer
    return library


def check(result: int) -> None:
    """Raises the error of a C function that returns 0 if it succeeds.

    Raises:
        OSError: The error with the number that the C library has set.
    """
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class BackingFile:
    """The file of a directory; :func:`backing_file` makes it.

    Args:
        directory: The directory of the file.

    Attributes:
        descriptor (int): The open file.
    """

    def __init__(self, directory: str | os.PathLike) -> None:
        # The file is closed with this object.
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self.descriptor = self._file.fileno()
        self._process = os.getpid()
        self._places, self._lock = Places(), threading.Lock()
        # Freed places. A finalizer may run within any statement, so it only adds here.
        self._left: collections.deque[tuple[int, int]] = collections.deque()
        # Whether freed places are zero when they are used again.
        self._are_punched = True

    def map(self, n_bytes: int) -> tuple[int, Any]:
        """Reserves a place full of zeros, and maps it into memory.

        The place is freed when its memory is no longer referenced.

        Args:
            n_bytes (int): Bytes of the place, at least 1.

        Returns:
            The first byte of the place, and the memory, an array of ctypes.

        Raises:
            OSError: If the disk is full, or the place cannot be mapped.
        """
        n_bytes = -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            while self._left:
                self._places.give_back(*self._left.popleft())
            start = self._places.take(n_bytes)
            try:
                self._reserve(start, n_bytes)
                address = libc().mmap(
                    None,
                    n_bytes,
                    mmap.PROT_READ | mmap.PROT_WRITE,
                    mmap.MAP_SHARED,
                    self.descriptor,
                    start,
                )
                check(address == _FAILED)
            except OSError:
                self._free(start, n_bytes)
                raise
        memory = (ctypes.c_ubyte * n_bytes).from_address(address)
        finalizer = weakref.finalize(memory, self._unmap, address, start, n_bytes)
        # When the process ends, other finalizers may still use the memory.
        finalizer.atexit = False
        return start, memory

    def _reserve(self, start: int, n_bytes: int) -> None:
        size = os.fstat(self.descriptor).st_size
        if not self._are_punched:
            for first in range(start, min(start + n_bytes, size), len(_ZEROS)):
                n_zeros = min(len(_ZEROS), start + n_bytes - first)
                os.pwrite(self.descriptor, _ZEROS[:n_zeros], first)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.descriptor, start, n_bytes)
        elif start + n_bytes > size:
            os.ftruncate(self.descriptor, start + n_bytes)

    def _unmap(self, address: int, start: int, n_bytes: int) -> None:
        libc().munmap(address, n_bytes)
        self._free(start, n_bytes)

    def _free(self, start: int, n_bytes: int) -> None:
        """Frees a place, and returns it to the disk."""
        if os.getpid() != self._process:
            # A forked process shares the memory, but the file is not its own.
            return
        punch = getattr(libc(), "fallocate", None)
        if punch is None or punch(self.descriptor, _PUNCH_HOLE, start, n_bytes):
            self._are_punched = False
        self._left.append((start, n_bytes))


# A file is open as long as an array has a place in it.
_files: weakref.WeakValueDictionary[str, BackingFile] = weakref.WeakValueDictionary()
_files_lock = threading.Lock()


def backing_file(directory: str | os.PathLike) -> BackingFile:
    """Returns this process's file in a directory.

    Raises:
        OSError: If no file can be made there.
    """
    # A forked process has its own file.
    key = f"{os.getpid()} {os.path.realpath(directory)}"
    with _files_lock:
        file = _files.get(key)
        if file is None:
            file = _files[key] = BackingFile(directory)
    return file


def refusal(
    n_bytes: int, directory: str | os.PathLike, what: str, error: OSError
) -> StoreError:
    """Returns an error with the reason why a directory has no place for an array.

    Args:
        n_bytes (int): Bytes of the array.
        directory: The directory.
        what (str): The name of the array.
        error: The cause.
    """
    try:
        free = f"{shutil.disk_usage(directory).free} bytes"
    except OSError:
        free = "unknown bytes"
    return StoreError(
        f"{what}: cannot keep its {n_bytes} bytes in a file in {directory}, where"
        f" {free} are free: {cause(error)}"
    )


def cause(error: OSError) -> str:
    """Returns the cause and the cure of a disk's error, with the error's name."""
    name = errno.errorcode.get(error.errno or 0)
    words = str(error.strerror or error) + (f" ({name})" if name else "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{words}. Give another directory, or free some space"
    if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
        return (
            f"{words}. Its file system cannot map files into memory: give a directory"
            f" on a local disk"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{words}. Raise the limit of open files, as by ulimit -n"
    return words
