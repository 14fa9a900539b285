"""Arrays in files, by keys that begin with the layer they belong to."""

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
    """A file to read, which keeps the first error of the file system.

    :mod:`zipfile` takes such an error for a file that is no archive.

    Attributes:
        error (OSError or None): The error.
    """

    error: OSError | None = None

    def readinto(self, buffer: Any) -> int | None:
        """Reads into a buffer, and returns how many bytes."""
        with self._noting():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Reads until the end of the file."""
        with self._noting():
            return super().readall()

    def close(self) -> None:
        """Closes the file.

        Raises:
            SnapshotError: With the file and the cause.
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
    """The arrays of several files by key; each is read when it is asked for.

    Args:
        files: Opened files by path.
        prefix (str): The beginning that the keys of this mapping have in the files.
        ledger: Notes the keys there are, and those that are read.
        is_dry_run (bool): Whether who reads must change nothing yet.
        replaced: By the path of a file the keys in it that another one has instead.
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
        """Returns those whose keys begin with ``prefix``, without it."""
        prefix = self._prefix + prefix
        return Arrays(self._files, prefix, self.ledger, self.is_dry_run, self._replaced)

    def outline(self, key: str) -> np.ndarray:
        """Returns an array of the same shape and dtype, which takes no memory.

        The array itself if it has no dimensions.
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
        # Arrays that belong to no layer are in every stage's file.
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
        """Returns what :meth:`outline` does, once it is known that the array is whole.

        Raises:
            UnreadableError: If it is damaged.
        """
        try:
            npz.check(self._files[self._places[key][0]], self._prefix + key)
        except ValueError as error:
            raise UnreadableError(str(error)) from error
        return self.outline(key)

    def read_into(self, key: str, file: MappedArray) -> None:
        """Reads an array into one that is on disk, without having all of it in memory.

        Args:
            key: The key of an array of the same shape.
            file: Overwritten.

        Raises:
            UnreadableError: If it is damaged.
        """
        full = self._prefix + key
        arrays = self._files[self._places[key][0]]
        # Layers of a stage stay where they are when others move.
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
        # Without reading the array, as Mapping does.
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def miss(self, key: str) -> None:
        """Records that a key was looked for in vain."""
        self.ledger.missing.add(self._prefix + key)

    def need_not(self, key: str) -> None:
        """Records that a key is not needed, though it was looked for in vain."""
        self.ledger.missing.discard(self._prefix + key)

    def leave_open(self, prefix: str) -> None:
        """Records that nobody knows yet which keys below a prefix are read.

        Something is, if there are any.
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
        """Records something that was saved within an array, and that nothing reads."""
        self.ledger.found.add(self._prefix + key)

    def take(self, key: str) -> None:
        """Records something that was saved within an array, and that was read."""
        self.ledger.read.add(self._prefix + key)

    def where(self, key: str) -> str:
        """Returns the file and the key in it, for errors."""
        names = self._places.get(key, self._files)
        return f"{next(iter(names), 'no file')}: {self._prefix}{key}"

    @contextlib.contextmanager
    def blamed(self, key: str) -> Iterator[None]:
        """Turns what a block raises into an error that names a key and its file.

        Raises:
            SnapshotError: For any other error.
        """
        try:
            yield
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(f"{self.where(key)}: {one_line(error)}") from error

    def json(self, key: str) -> Any:
        """Returns what is written under a key as JSON.

        Raises:
            SnapshotError: If there is no such key, or no JSON, with the file.
        """
        with self.blamed(key):
            if key not in self:
                raise ValueError("it is missing")
            return json.loads(_text(self[key]))


def _text(array: np.ndarray) -> str:
    item = array[()]
    return item.decode() if isinstance(item, bytes) else str(item)


def one_line(error: BaseException) -> str:
    """Returns an error in one line, with its class."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[Mapping]:
    """Opens an ``.npz`` file, of which no pickled object is read but ``None``.

    Args:
        path: The file.

    Raises:
        UnreadableError: With the file, if it is none.
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
    """Returns the layer of a key such as ``7/W``; ``None`` if it is of no layer."""
    first = key.lstrip("/").split("/", 1)[0]
    return int(first) if first.isdecimal() else None


def of_range(
    arrays: Mapping[str, np.ndarray], layer_range: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Returns what belongs to some layers, and what belongs to none.

    Of what layers share, whoever has the first of them keeps it.
    """
    start, end = layer_range
    return {
        key: value
        for key, value in arrays.items()
        if position(key) is None or start <= position(key) < end
    }


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Writes a file, and waits until it is on disk.

    The checksum is that of what was to be written, not of what a disk made of it.

    Returns:
        The size and the checksum, for the manifest.

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

    NumPy 2.0 leaves it open after an error. Python closes it later, when the file is
    closed already, and prints the error that this makes.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for key, array in arrays.items():
            # How large an entry becomes is not known when its header is written.
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                # One that has its own memory is no part of a file.
                is_in_memory = getattr(array, "base", None) is None
                file = None if is_in_memory else mapped_array(array)
                if file is None:
                    npy.write_array(entry, np.asanyarray(array))
                else:
                    _write_parts(entry, file)


def _write_parts(entry: IO[bytes], file: MappedArray) -> None:
    """Writes an array that is on disk, without having all of it in memory."""
    array = file.array
    npy.write_array_header_1_0(entry, npy.header_data_from_array_1_0(array))
    for start, stop in file.parts(written=False):
        entry.write(memoryview(array[start:stop]).cast("B"))


class _HashingFile(io.RawIOBase):
    """A file to write from the beginning to the end, with the checksum on the way."""

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
