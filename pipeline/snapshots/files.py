"""The files of a snapshot, and the manifest that describes them.

The manifest is JSON with a checksum, each field of which is checked::

    result/snapshot_iter_1000/
        manifest.json      the layers in each file, sizes and checksums; written last,
        stage-0.npz          when all ranks have written their files
        stage-1.npz        of each stage: model/7/W, optimizer/7/W/v, optimizer/t
        loss.npz           if the loss has parameters: model/loss/W, optimizer/W/v
        replica-1-stage-0.npz  values of a later replica that differ, if there are any
        common.npz         iterators, trainer and random states, which no stage has
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from divisible.files import flush, sha256_of
from divisible.records import LIMIT, MOST_RANKS, shown
from pipeline.snapshots.arrays import Arrays, opened
from pipeline.snapshots.errors import Differences, Ledger, SnapshotError, naming
from pipeline.snapshots.names import (
    COMMON,
    LOSS,
    MANIFEST,
    is_file,
    is_folder,
    names_in,
    replica_file,
    stage_file,
)

# More than any model has, and few enough to be counted quickly.
_MOST_LAYERS = 2**20
_KIND = "snapshot"
_OF_REPLICA = re.compile(r"replica-([0-9]{1,9})-(.+)")
# Attributes of Snapshot that are not in the manifest.
_NOT_WRITTEN = ("path", "replica", "differences")
_FORMAT = 1


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the contents of the manifest in a directory, unchecked.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not the manifest of a snapshot.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict) or content.get("divisible") != _KIND:
        raise ValueError("it is not the manifest of a snapshot")
    return content


def _is_snapshot(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return bool(read_manifest(folder))
    return False


def checksum(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest, as hexadecimal digits."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def checked(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked fields of a manifest in this format.

    Raises:
        ValueError: With the field that is missing, unknown or of a wrong type.
    """
    fields = {k: v for k, v in content.items() if k not in ("divisible", "format")}
    # The field is not written for one replica.
    fields.setdefault("n_replicas", 1)
    for name, (fits, words) in _FIELDS.items():
        if name not in fields:
            raise ValueError(f"the field {name!r} is missing")
        if not fits(fields[name]):
            raise ValueError(
                f"the field {name!r} must be {words}, not {shown(fields[name])}"
            )
    unknown = sorted(fields.keys() - _FIELDS.keys())
    if unknown:
        raise ValueError(f"the field {shown(unknown[0])} is unknown")
    fields["layer_ranges"] = [tuple(pair) for pair in fields["layer_ranges"]]
    expected = {COMMON, *map(stage_file, range(len(fields["layer_ranges"])))}
    own = {*expected - {COMMON}, LOSS}
    for name in sorted(expected ^ fields["files"].keys()):
        if name != LOSS and not _is_of_replica(name, fields["n_replicas"], own):
            raise ValueError(
                f"the field 'files' has {'no' if name in expected else 'another'} file"
                f" {shown(name)}"
            )
    return fields


def _is_of_replica(name: str, n_replicas: int, of_first: Collection[str]) -> bool:
    """Returns whether a file may be that of a later replica."""
    match = _OF_REPLICA.fullmatch(name)
    return (
        match is not None
        and 0 < int(match[1]) < n_replicas
        and match[2] in of_first
        and name == replica_file(int(match[1]), match[2])
    )


def _is_count(value: Any, least: int = 0, most: int = LIMIT - 1) -> bool:
    # Exactly JSON's integers, because True is an instance of int.
    return type(value) is int and least <= value <= most


def _is_number_of_ranks(value: Any) -> bool:
    return _is_count(value, 1, MOST_RANKS)


def _is_time(value: Any) -> bool:
    # Larger integers cannot become floats. NaN fails the comparison.
    return type(value) in (int, float) and abs(value) < 1e300


def _are_ranges(value: Any) -> bool:
    end = 0
    for pair in value if isinstance(value, list) else []:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(_is_count(position, 0, _MOST_LAYERS) for position in pair)
        ):
            return False
        if pair[0] != end or pair[1] <= end:
            return False
        end = pair[1]
    return end > 0


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(entry, dict)
        and set(entry) == {"bytes", "sha256"}
        and _is_count(entry["bytes"])
        and isinstance(entry["sha256"], str)
        and re.fullmatch("[0-9a-f]{64}", entry["sha256"])
        for entry in value.values()
    )


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


_FIELDS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "layer_ranges": (
        _are_ranges,
        "ranges [start, end] one after the other, from 0 to 2**20 at most",
    ),
    "files": (_are_files, "the 'bytes' and the 'sha256' of each file"),
    "time": (_is_time, "a number of seconds"),
    "n_ranks": (_is_number_of_ranks, f"an integer from 1 to {MOST_RANKS}"),
    "n_replicas": (_is_number_of_ranks, f"an integer from 1 to {MOST_RANKS}"),
    "n_steps": (_is_count, "an integer from 0 to 2**63 - 1"),
    "schedule": (_is_dict, "a dictionary"),
    "versions": (_is_dict, "a dictionary"),
    "values": (_is_dict, "a dictionary"),
}


@dataclass(frozen=True)
class Snapshot:
    """A snapshot, as its manifest describes it.

    Attributes:
        path (Path): Directory of the snapshot.
        layer_ranges: The range ``(start, end)`` of each stage's layers.
        files: Size in bytes, and SHA-256 in hexadecimal digits, of each file.
        time (float): Time of the snapshot, in seconds since 1970. It is later than that
            of all earlier snapshots in the directory, even if the clock was set back.
        n_ranks (int): Number of ranks in the pipeline that saved it.
        n_steps (int): Number of minibatches that the pipeline had run.
        schedule (dict): ``'name'``, ``'n_microbatches'`` and the grid as ``'text'``,
            ``'hold_dtype'`` if it is not ``'float32'``, and ``'message_dtypes'`` if an
            edge is narrowed, a text for each edge. It is empty if the stages are no
            longer those of the schedule.
        versions (dict): Versions of Python, NumPy, Chainer and this package, and the
            dtype of products if it is not float32.
        values (dict): The ``values`` given to :func:`~pipeline.save_snapshot`.
        n_replicas (int): Number of replicas of the pipeline.
        replica (int): Replica whose files are read; where it has none, the first's are.
        differences: Keys that :func:`~pipeline.load_snapshot` with ``strict=False`` did
            not load, as ``differences.missing`` and ``differences.left_over``.
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
    n_replicas: int = 1
    replica: int = field(default=0, compare=False)
    differences: Differences = field(default=Differences(), compare=False)

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return self.layer_ranges[-1][1]

    @classmethod
    def open(cls, path: str | os.PathLike) -> Snapshot:
        """Reads the manifest of a snapshot.

        Raises:
            SnapshotError: If there is no manifest, or it was changed. If the directory
                has snapshots inside, the error lists them.
        """
        path = Path(path)
        file = path / MANIFEST
        with naming(file, "read"):
            try:
                content = read_manifest(path)
            except FileNotFoundError:
                _refuse_folder_of_snapshots(path)
                why = "is incomplete" if is_folder(path) else "does not exist here"
                raise SnapshotError(
                    f"{path} {why}: there is no {file}. All ranks must see the same"
                    f" files; several hosts need a file system that they share"
                ) from None
            except ValueError as error:
                raise SnapshotError(f"cannot read {file}: {error}") from error
        if content.pop("sha256", None) != checksum(content):
            raise SnapshotError(f"{file} was changed: its checksum does not fit")
        version = content.get("format")
        if version != _FORMAT:
            raise SnapshotError(
                f"{file} describes a snapshot in format {version}; this version of"
                f" divisible reads snapshots in format {_FORMAT}"
            )
        try:
            return cls(path=path, **checked(content))
        except ValueError as error:
            raise SnapshotError(f"cannot read {file}: {error}") from error

    @property
    def checksum(self) -> str:
        """SHA-256 of the manifest's contents, as hexadecimal digits.

        Equal manifests have equal checksums, even with a NaN among the values, which
        does not equal itself.
        """
        return checksum(self._content())

    def write_manifest(self) -> None:
        """Writes the manifest into the directory, and waits until it is on disk."""
        content = self._content()
        content["sha256"] = checksum(content)
        path = self.path / MANIFEST
        with naming(path, "write"), open(path, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            flush(file)

    def _content(self) -> dict[str, Any]:
        content = asdict(self)
        for name in _NOT_WRITTEN:
            del content[name]
        if self.n_replicas == 1:
            del content["n_replicas"]
        # Tuples become lists, and keys texts, as in a manifest that is read again.
        text = json.dumps({"divisible": _KIND, "format": _FORMAT, **content})
        return json.loads(text)

    def check_sizes(self) -> None:
        """Checks that all files exist with their sizes, without reading them.

        Raises:
            SnapshotError: With the name of a file that is missing or truncated.
        """
        for name, expected in self.files.items():
            file = self.path / name
            if not is_file(file):
                raise SnapshotError(f"{file} is missing")
            with naming(file, "look at"):
                size = file.stat().st_size
            if size != expected["bytes"]:
                raise SnapshotError(
                    f"{file} has {size} bytes, not {expected['bytes']}: it was"
                    f" truncated or changed"
                )

    def verify(self, names: Sequence[str] | None = None) -> None:
        """Compares files with their checksums.

        Args:
            names: Names of the files; ``None`` for all.

        Raises:
            SnapshotError: With the name of a file that was truncated or changed.
        """
        self.check_sizes()
        self.check_sums(self.files if names is None else names)

    def check_sums(self, names: Iterable[str]) -> None:
        """Compares files as :meth:`verify` does; other files may be missing."""
        for name in names:
            file = self.path / name
            with naming(file, "read"):
                digest = sha256_of(file)
            if digest != self.files[name]["sha256"]:
                raise SnapshotError(
                    f"{file} was changed: its SHA-256 is not that of the"
                    f" manifest. Resume from another snapshot"
                )

    def files_of(self, positions: Iterable[int]) -> list[str]:
        """Returns the files with the layers at some positions."""
        starts = [start for start, _ in self.layer_ranges]
        stages = {bisect_right(starts, position) - 1 for position in positions}
        return [stage_file(number) for number in sorted(stages)]

    def of_replicas(self) -> list[Snapshot]:
        """Returns the snapshot once for each saved replica, as it would read it."""
        return [replace(self, replica=i) for i in range(self.n_replicas)]

    def own_files(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the replica's own files, by names of files of the first replica."""
        found = {name: replica_file(self.replica, name) for name in names}
        return {name: own for name, own in found.items() if own in self.files}

    @contextlib.contextmanager
    def arrays(
        self,
        names: Sequence[str],
        ledger: Ledger | None = None,
        is_dry_run: bool = False,
    ) -> Iterator[Arrays]:
        """Opens files; their arrays are read when they are needed.

        Args:
            names: Names of the files.
            ledger: Records the keys in the files, and the keys that are read.
            is_dry_run (bool): Whether readers must not change anything yet.
        """
        with contextlib.ExitStack() as stack:
            files, replaced = {}, {}
            own = self.own_files(names)
            for name in (*names, *own.values()):
                path = self.path / name
                arrays = stack.enter_context(opened(path))
                files[str(path)] = arrays
            for name, other in own.items():
                replaced[str(self.path / name)] = set(files[str(self.path / other)])
            yield Arrays(files, ledger=ledger, is_dry_run=is_dry_run, replaced=replaced)

    @contextlib.contextmanager
    def of_layers(
        self,
        positions: Iterable[int],
        prefix: str,
        ledger: Ledger | None = None,
        is_dry_run: bool = False,
    ) -> Iterator[Arrays]:
        """Opens the arrays of some layers whose keys begin with ``prefix``.

        Args:
            positions: Positions of the layers.
            prefix: ``'model/'`` or ``'optimizer/'``.
            ledger: See :meth:`arrays`.
            is_dry_run (bool): See :meth:`arrays`.
        """
        with self.arrays(self.files_of(positions), ledger, is_dry_run) as arrays:
            yield arrays.below(prefix)


def _refuse_folder_of_snapshots(path: Path) -> None:
    """Raises an error that lists the snapshots in a directory, if there are any."""
    inside = names_in(path) if is_folder(path) else ()
    found = [str(path / name) for name in inside if _is_snapshot(path / name)]
    if found:
        found.sort(key=lambda each: (len(each), each))
        raise SnapshotError(
            f"{path} is a folder of snapshots: name one of them, {' or '.join(found)}"
        )
