"""A snapshot on disk: a directory that is there completely or not at all.

::

    result/snapshot_iter_1000/
        manifest.json      which layers are in which file; sizes and checksums; written
        stage-0.npz          last, when all ranks have written their files
        stage-1.npz        of each stage: model/7/W, optimizer/7/W/v, optimizer/t
        loss.npz           if the loss has parameters: model/loss/W, optimizer/W/v
        common.npz         what no stage owns: iterators, trainer, random states

It is written into ``snapshot_iter_1000.partial`` and renamed when every file is on
disk. Several hosts need a file system that they share.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST = "manifest.json"
COMMON = "common.npz"
LOSS = "loss.npz"
_KIND = "snapshot"
_FORMAT = 1
_PARTIAL = ".partial"
_REPLACED = ".replaced"


class SnapshotError(RuntimeError):
    """A snapshot could not be written, or must not be read.

    When ranks save or load together, it is raised alike on every rank.
    """


@dataclass(frozen=True)
class Snapshot:
    """What the manifest of a snapshot says.

    Attributes:
        path (Path): The directory.
        layer_ranges: For each stage the ``(start, end)`` of its layers.
        files: For each file its size in bytes and its SHA-256, as hexadecimal digits.
        time (float): When it was taken, in seconds since 1970.
        n_ranks (int): How many ranks took it.
        n_steps (int): How many minibatches the pipeline had run.
        schedule (dict): ``'name'``, ``'n_microbatches'`` and the grid as ``'text'``;
            empty if the stages are no longer those of the schedule.
        versions (dict): Of Python, NumPy, Chainer and this package.
        values (dict): What :func:`~pipeline.save_snapshot` was given as ``values``.
    """

    path: Path
    layer_ranges: Sequence[tuple[int, int]]
    files: Mapping[str, Mapping[str, Any]]
    time: float
    n_ranks: int
    n_steps: int
    schedule: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_layers(self) -> int:
        """The number of layers of the model."""
        return self.layer_ranges[-1][1]

    @classmethod
    def open(cls, path: str | os.PathLike) -> Snapshot:
        """Reads the manifest of a snapshot.

        Raises:
            SnapshotError: If there is none, or it was changed.
        """
        path = Path(path)
        manifest = path / MANIFEST
        try:
            content = _read_manifest(path)
        except FileNotFoundError:
            why = "is incomplete" if path.is_dir() else "does not exist here"
            raise SnapshotError(
                f"{path} {why}: there is no {manifest}. All ranks must see the same"
                f" files; several hosts need a file system that they share"
            ) from None
        except (OSError, ValueError) as error:
            raise SnapshotError(f"cannot read {manifest}: {error}") from error
        if content.pop("sha256", None) != _checksum(content):
            raise SnapshotError(f"{manifest} was changed: its checksum does not fit")
        del content["divisible"]
        version = content.pop("format")
        if version != _FORMAT:
            raise SnapshotError(
                f"{manifest} describes a snapshot in format {version}; this version of"
                f" divisible reads snapshots in format {_FORMAT}"
            )
        content["layer_ranges"] = [tuple(pair) for pair in content["layer_ranges"]]
        return cls(path=path, **content)

    @property
    def checksum(self) -> str:
        """The SHA-256 of what the manifest says, as hexadecimal digits.

        Equal manifests have equal ones, also with a NaN among the values, which equals
        nothing.
        """
        return _checksum(self._content())

    def write_manifest(self) -> None:
        """Writes the manifest into the directory, and waits until it is on disk."""
        content = self._content()
        content["sha256"] = _checksum(content)
        with open(self.path / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            _flush(file)

    def _content(self) -> dict[str, Any]:
        content = {"divisible": _KIND, "format": _FORMAT, **asdict(self)}
        del content["path"]
        # As it is read: tuples as lists, keys as texts.
        return json.loads(json.dumps(content))

    def check_sizes(self) -> None:
        """Looks whether all files are there, without reading them.

        Raises:
            SnapshotError: With the name of a file that is missing or truncated.
        """
        for name, expected in self.files.items():
            file = self.path / name
            if not file.is_file():
                raise SnapshotError(f"{file} is missing")
            size = file.stat().st_size
            if size != expected["bytes"]:
                raise SnapshotError(
                    f"{file} has {size} bytes, not {expected['bytes']}: it was"
                    f" truncated or changed"
                )

    def verify(self, names: Sequence[str] | None = None) -> None:
        """Compares files with their checksums.

        Args:
            names: Which files; ``None`` for all.

        Raises:
            SnapshotError: With the name of a file that was truncated or changed.
        """
        self.check_sizes()
        for name in self.files if names is None else names:
            digest = hashlib.sha256()
            with open(self.path / name, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() != self.files[name]["sha256"]:
                raise SnapshotError(
                    f"{self.path / name} was changed: its SHA-256 is not that of the"
                    f" manifest. Resume from another snapshot"
                )

    def files_of(self, positions: Iterable[int]) -> list[str]:
        """Returns the files that have the layers at some positions."""
        starts = [start for start, _ in self.layer_ranges]
        stages = {bisect_right(starts, position) - 1 for position in positions}
        return [stage_file(number) for number in sorted(stages)]

    @contextlib.contextmanager
    def arrays(self, names: Sequence[str]) -> Iterator[Arrays]:
        """Opens files; their arrays are read when they are asked for."""
        with contextlib.ExitStack() as stack:
            opened = {}
            for name in names:
                arrays = np.load(self.path / name, allow_pickle=False)
                opened[name] = stack.enter_context(arrays)
            yield Arrays(opened)

    @contextlib.contextmanager
    def of_layers(self, positions: Iterable[int], prefix: str) -> Iterator[Arrays]:
        """Opens the arrays whose keys begin with ``prefix``, of some layers."""
        with self.arrays(self.files_of(positions)) as arrays:
            yield arrays.below(prefix)


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


def stage_file(number: int) -> str:
    """Returns the name of a stage's file."""
    return f"stage-{number}.npz"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Writes a file, and waits until it is on disk.

    The checksum is that of what was to be written, not of what a disk made of it.

    Returns:
        The size and the checksum, for the manifest.
    """
    with open(path, "wb") as file:
        hashing = _HashingFile(file)
        np.savez(hashing, **arrays)
        _flush(file)
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


def partial_path(path: Path) -> Path:
    """Returns the directory to write a snapshot into before it has its name."""
    return path.with_name(path.name + _PARTIAL)


def begin(path: Path) -> None:
    """Makes the directory to write a snapshot into.

    Raises:
        SnapshotError: If something else than a snapshot has the name; it stays.
    """
    partial = partial_path(path)
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not _is_snapshot(path):
        raise SnapshotError(
            f"{path} is there and is no snapshot; it would be replaced: give another"
            f" name, such as {path / 'snapshot'}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # What a run that was killed left.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()


def finish(partial: Path, path: Path) -> None:
    """Gives a snapshot its name, when all its files are on disk."""
    _flush_directory(partial)
    # A whole snapshot is found at every moment: the old one has a name that is found
    # as well, until the new one has its own.
    replaced = path.with_name(path.name + _REPLACED)
    if path.exists():
        _remove(replaced)
        path.rename(replaced)
    try:
        partial.rename(path)
    except OSError:
        if replaced.exists():
            replaced.rename(path)
        raise
    _flush_directory(path.parent)
    _remove(replaced)


def _remove(path: Path) -> None:
    """Removes a snapshot, or a symbolic link to one, as far as possible."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Removes what was written of a snapshot that failed, as far as possible."""
    shutil.rmtree(partial_path(path), ignore_errors=True)


def remove_old(path: Path, n_retains: int) -> None:
    """Removes older snapshots whose names differ from this one's in numbers only.

    Args:
        path: The newest snapshot.
        n_retains: How many to keep, this one included.
    """
    series = _series(path.name)
    # What killed runs have left, first: an old snapshot gets such a name below.
    for partial in list(path.parent.glob(f"*{_PARTIAL}")):
        if _series(partial.name) == series:
            shutil.rmtree(partial, ignore_errors=True)
    # Without the newest itself, which a clock that was set back makes look older.
    others = [
        snapshot
        for snapshot in _whole_snapshots(path.parent)
        if _series(snapshot.path.name) == series and snapshot.path.name != path.name
    ]
    others.sort(key=_age, reverse=True)
    for snapshot in others[n_retains - 1 :]:
        partial = partial_path(snapshot.path)
        # What cannot be removed must not stop the training.
        with contextlib.suppress(OSError):
            # Half a snapshot must not look like a whole one, even if this is killed.
            snapshot.path.rename(partial)
            shutil.rmtree(partial, ignore_errors=True)


def latest_snapshot(directory: str | os.PathLike, pattern: str = "*") -> Path | None:
    """Returns the newest whole snapshot in a directory.

    One that was not finished is passed over. One that has lost a file, or a part of
    one, is passed over with a warning. One that was about to be replaced when the run
    was killed is found as well, with ``.replaced`` behind its name.

    Args:
        directory: Where to look.
        pattern (str): What the names of snapshots look like, with ``*`` for anything.

    Returns:
        Path or None: Its directory; ``None`` if there is none.

    Example:
        >>> latest_snapshot('no/such/directory') is None
        True
    """
    found = sorted(_whole_snapshots(Path(directory), pattern), key=_age)
    return found[-1].path if found else None


def _whole_snapshots(directory: Path, pattern: str = "*") -> Iterator[Snapshot]:
    found = {*directory.glob(pattern), *directory.glob(pattern + _REPLACED)}
    for path in sorted(found):
        try:
            if path.name.endswith(_PARTIAL) or not (path / MANIFEST).is_file():
                continue
            snapshot = Snapshot.open(path)
            snapshot.check_sizes()
        except (OSError, SnapshotError) as error:
            warnings.warn(f"a snapshot is passed over: {error}", stacklevel=3)
            continue
        yield snapshot


def _age(snapshot: Snapshot) -> tuple[float, int]:
    return snapshot.time, snapshot.n_steps


def _series(name: str) -> str:
    """Returns what the names of a run's snapshots have in common."""
    return re.sub(r"\d+", "0", name.removesuffix(_PARTIAL).removesuffix(_REPLACED))


def _read_manifest(path: Path) -> dict[str, Any]:
    """Returns what the manifest in a directory says, unchecked.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is none of a snapshot.
    """
    content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("divisible") != _KIND:
        raise ValueError("it is not the manifest of a snapshot")
    return content


def _is_snapshot(path: Path) -> bool:
    try:
        _read_manifest(path)
    except (OSError, ValueError):
        return False
    return True


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems do not know this for directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
