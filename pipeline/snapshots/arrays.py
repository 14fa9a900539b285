"""Arrays in files, with keys that begin with the number of a layer."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from chainer_compat import npz
from chainer_compat.npz import NpzArrays, header
from divisible.files import flush
from divisible.streaming.mapped import MappedArray, mapped_array
from pipeline.snapshots.errors import Ledger, SnapshotError, UnreadableError, naming


class NotingFile(io.FileIO):
    """A file to read, which records the first error of the file system.

    :mod:`zipfile` would report such an error as a file that is not an archive.

    Attributes:
        error (OSError or None): The first error.
    """

    error: OSError | None = None

    def readinto(self, buffer: Any) -> int | None:
        """Reads into a buffer, and returns the number of bytes."""
        with self._noting():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Reads until the end of the file."""
        with self._noting():
            return super().readall()

    def close(self) -> None:
        """Closes the file.

        Raises:
            SnapshotError: With the file and the cause, if it cannot be closed.
        """
        with naming(self.name, "close"):
            super().close()

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error
            raise


class Arrays(Mapping):
    """The arrays of several files by key; each is read when it is needed.

    Args:
        files: Opened files, by path.
        prefix (str): Beginning of this mapping's keys in the files.
        ledger: Records the keys that exist, and the keys that are read.
        is_dry_run (bool): Whether readers must not change anything yet.
        replaced: Keys in a file that another file has instead, by the file's path.
    """

    def __init__(
        self,
        files: Mapping[str, Mapping],
        prefix: str = "",
        ledger: Ledger | None = None,
        is_dry_run: bool = False,
        replaced: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._files, self._replaced = files, replaced or {}
        self._prefix = prefix
        self.ledger = Ledger() if ledger is None else ledger
        self.is_dry_run = is_dry_run
        self._places: dict[str, list[str]] = {}
        for name, arrays in files.items():
            hidden = self._replaced.get(name, ())
            for key in arrays:
                if key.startswith(prefix) and key not in hidden:
                    self._places.setdefault(key[len(prefix) :], []).append(name)
        self.ledger.found.update(prefix + key for key in self._places)

    def below(self, prefix: str) -> Arrays:
        """Returns the arrays whose keys begin with ``prefix``, without it."""
        prefix = self._prefix + prefix
        return Arrays(self._files, prefix, self.ledger, self.is_dry_run, self._replaced)

    def outline(self, key: str) -> np.ndarray:
        """Returns an array of the same shape and dtype that takes no memory.

        If it has no dimensions, the array itself is returned.
        """
        name, *others = self._places[key]
        full = self._prefix + key
        found = None if others else header(self._files[name], full)
        if found is None or not found[0] or found[1].hasobject:
            return self[key]
        shape, dtype = found
        self.ledger.read.add(full)
        return np.broadcast_to(np.zeros((), dtype), shape)

    def __getitem__(self, key: str) -> np.ndarray:
        first, *others = self._places[key]
        full = self._prefix + key
        array = self._read(first, full)
        # Arrays that belong to no layer are in the file of every stage.
        for other in others:
            theirs = self._read(other, full)
            if (theirs.dtype, theirs.tobytes()) != (array.dtype, array.tobytes()):
                raise SnapshotError(
                    f"{full} is {array} in {first} and {theirs} in {other}: stages"
                    f" that differ in this, as those of different optimizers may,"
                    f" cannot be put together"
                )
        self.ledger.read.add(full)
        return array

    def checked(self, key: str) -> np.ndarray:
        """Returns :meth:`outline`, after the array has been checked for damage.

        Raises:
            UnreadableError: If the array is damaged.
        """
        try:
            npz.check(self._files[self._places[key][0]], self._prefix + key)
        except ValueError as error:
            raise UnreadableError(str(error)) from error
        return self.outline(key)

    def read_into(self, key: str, file: MappedArray) -> None:
        """Reads an array into one on disk, part by part.

        Args:
            key: Key of an array of the same shape.
            file: Array on disk that is overwritten.

        Raises:
            UnreadableError: If the array is damaged.
        """
        full = self._prefix + key
        arrays = self._files[self._places[key][0]]
        # If other layers move, the layers of a stage are in their files already.
        is_there = isinstance(arrays, dict) and arrays[full] is file.array
        try:
            if not is_there:
                parts = file.parts(written=True)
                npz.read_into(arrays, full, file.array, parts)
        except ValueError as error:
            raise UnreadableError(str(error)) from error
        self.ledger.read.add(full)

    def _read(self, name: str, full: str) -> np.ndarray:
        try:
            return self._files[name][full]
        except ValueError as error:
            raise UnreadableError(str(error)) from error

    def __contains__(self, key: object) -> bool:
        # Mapping's own method would read the array.
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def miss(self, key: str) -> None:
        """Records that a key is missing."""
        self.ledger.missing.add(self._prefix + key)

    def need_not(self, key: str) -> None:
        """Records that a missing key is not needed."""
        self.ledger.missing.discard(self._prefix + key)

    def leave_open(self, prefix: str) -> None:
        """Records that it is not known yet which keys below a prefix will be read.

        If there are any, all count as read.
        """
        keys = [key for key in self if key.startswith(prefix)]
        for key in keys:
            self.take(key)
        if keys:
            above = self._prefix + prefix
            missing = self.ledger.missing
            missing -= {key for key in missing if key.startswith(above)}

    def note_empty(self, key: str) -> None:
        """Records that an array had no value when it was saved."""
        self.ledger.empty.add(self._prefix + key)

    def was_empty(self, key: str) -> bool:
        """Returns whether an array had no value when it was saved."""
        return self._prefix + key in self.ledger.empty

    def leave(self, key: str) -> None:
        """Records a value within an array that nothing reads."""
        self.ledger.found.add(self._prefix + key)

    def take(self, key: str) -> None:
        """Records a value within an array that was read."""
        self.ledger.read.add(self._prefix + key)

    def where(self, key: str) -> str:
        """Returns the file and the key in it, for errors."""
        names = self._places.get(key, self._files)
        return f"{next(iter(names), 'no file')}: {self._prefix}{key}"

    @contextlib.contextmanager
    def blamed(self, key: str) -> Iterator[None]:
        """Turns errors of a block into errors with a key and its file.

        Raises:
            SnapshotError: In place of any other error.
        """
        try:
            yield
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"{self.where(key)}: {one_line(error)}") from error

    def json(self, key: str) -> Any:
        """Returns the value of a key that was saved as JSON.

        Raises:
            SnapshotError: If the key is missing, or is not JSON, with the file.
        """
        with self.blamed(key):
            if key not in self:
                raise ValueError("it is missing")
            return json.loads(_text(self[key]))


def _text(array: np.ndarray) -> str:
    item = array[()]
    return item.decode() if isinstance(item, bytes) else str(item)


def one_line(error: BaseException) -> str:
    """Returns the text of an error in one line, with its class."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[Mapping]:
    """Opens an ``.npz`` file; the only pickled object that may be read is ``None``.

    Args:
        path: File to open.

    Raises:
        UnreadableError: With the file, if it is not an ``.npz`` file.
        SnapshotError: With the file and the cause, if it cannot be read.
        OSError: If it cannot be opened.
    """
    with NotingFile(path) as noting, io.BufferedReader(noting) as file:
        try:
            arrays = NpzArrays(file)
        except (OSError, ValueError) as error:
            with naming(path, "read"):
                if noting.error is not None:
                    raise noting.error from None
            raise UnreadableError(str(error)) from error
        with arrays:
            yield arrays


def position(key: str) -> int | None:
    """Returns the layer of a key such as ``7/W``; ``None`` if it has no layer."""
    first = key.lstrip("/").split("/", 1)[0]
    return int(first) if first.isdecimal() else None


def of_range(
    arrays: Mapping[str, np.ndarray], layer_range: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Returns the arrays of a range of layers, and those that belong to no layer.

    The first of several layers that share an array keeps it.
    """
    start, end = layer_range
    return {
        key: value
        for key, value in arrays.items()
        if position(key) is None or start <= position(key) < end
    }


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Writes a file, and waits until it is on disk.

    The checksum is computed from the data in memory, not from the data on disk.

    Returns:
        Size and checksum of the file, for the manifest.

    Raises:
        SnapshotError: With the file and the cause, if it cannot be written.
    """
    with naming(path, "write"), open(path, "wb") as file:
        hashing = _HashingFile(file)
        _write_archive(hashing, arrays)
        flush(file)
    return {"bytes": hashing.n_bytes, "sha256": hashing.digest.hexdigest()}


def _write_archive(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes what :func:`numpy.savez` would, and closes the archive in any case.

    NumPy 2.0 leaves it open after an error. Python would close it after the file, and
    print the error that this causes.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for key, array in arrays.items():
            # The size of an entry is not known when its header is written.
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                # An array with its own memory is not part of a file.
                is_in_memory = getattr(array, "base", None) is None
                file = None if is_in_memory else mapped_array(array)
                if file is None:
                    npy.write_array(entry, np.asanyarray(array))
                else:
                    _write_parts(entry, file)


def _write_parts(entry: IO[bytes], file: MappedArray) -> None:
    """Writes an array on disk, part by part."""
    array = file.array
    npy.write_array_header_1_0(entry, npy.header_data_from_array_1_0(array))
    for start, stop in file.parts(written=False):
        entry.write(memoryview(array[start:stop]).cast("B"))


class _HashingFile(io.RawIOBase):
    """A file written from beginning to end, which computes its checksum meanwhile."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.digest.update(data)
        self.n_bytes += memoryview(data).nbytes
        return memoryview(data).nbytes
