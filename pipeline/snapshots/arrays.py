"""Arrays in files, by keys that begin with the layer they belong to."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from divisible.files import flush
from pipeline.snapshots.errors import SnapshotError


class Arrays(Mapping):
    """The arrays of several files by key; each is read when it is asked for.

    Args:
        files: Opened files by name.
        prefix (str): What the keys of this mapping have before them in the files.
    """

    def __init__(self, files: Mapping[str, Mapping], prefix: str = "") -> None:
        self._files = files
        self._prefix = prefix
        self._places: dict[str, list[str]] = {}
        for name, arrays in files.items():
            for key in arrays:
                if key.startswith(prefix):
                    self._places.setdefault(key[len(prefix) :], []).append(name)

    def below(self, prefix: str) -> Arrays:
        """Returns those whose keys begin with ``prefix``, without it."""
        return Arrays(self._files, self._prefix + prefix)

    def __getitem__(self, key: str) -> np.ndarray:
        first, *others = self._places[key]
        full = self._prefix + key
        array = self._files[first][full]
        # What belongs to no layer is in every stage's file.
        for other in others:
            theirs = self._files[other][full]
            if (theirs.dtype, theirs.tobytes()) != (array.dtype, array.tobytes()):
                raise SnapshotError(
                    f"{full} is {array} in {first} and {theirs} in {other}: stages"
                    f" that differ in this, as those of different optimizers may,"
                    f" cannot be put together"
                )
        return array

    def __contains__(self, key: object) -> bool:
        # Without reading the array, as Mapping does.
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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
    """
    with open(path, "wb") as file:
        hashing = _HashingFile(file)
        np.savez(hashing, **arrays)
        flush(file)
    return {"bytes": hashing.n_bytes, "sha256": hashing.digest.hexdigest()}


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
