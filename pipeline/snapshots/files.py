"""The files of a snapshot, and the manifest that says what they must be.

The manifest is JSON with a checksum, each field of which is checked::

    result/snapshot_iter_1000/
        manifest.json      which layers are in which file; sizes and checksums; written
        stage-0.npz          last, when all ranks have written their files
        stage-1.npz        of each stage: model/7/W, optimizer/7/W/v, optimizer/t
        loss.npz           if the loss has parameters: model/loss/W, optimizer/W/v
        replica-1-stage-0.npz  of later replicas what they have otherwise, if anything
        common.npz         what no stage owns: iterators, trainer, random states
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

from divisible.files import flush
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

# More than any model has, and few enough to be counted in no time.
_MOST_LAYERS = 2**20
_KIND = "snapshot"
_OF_REPLICA = re.compile(r"replica-([0-9]{1,9})-(.+)")
# Fields that the manifest does not have.
_NOT_WRITTEN = ("path", "replica", "differences")
_FORMAT = 1


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns what the manifest in a directory says, unchecked.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is none of a snapshot.
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
    """Returns the fields of a manifest in this format.

    Raises:
        ValueError: With the field that is missing, unknown, or of another kind.
    """
    fields = {k: v for k, v in content.items() if k not in ("divisible", "format")}
    # Without replicas it is not written.
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
    """Returns whether a later replica may have written a file."""
    match = _OF_REPLICA.fullmatch(name)
    return (
        match is not None
        and 0 < int(match[1]) < n_replicas
        and match[2] in of_first
        and name == replica_file(int(match[1]), match[2])
    )


def _is_count(value: Any, least: int = 0, most: int = LIMIT - 1) -> bool:
    # The types that JSON has, so that True is no integer.
    return type(value) is int and least <= value <= most


def _is_number_of_ranks(value: Any) -> bool:
    return _is_count(value, 1, MOST_RANKS)


def _is_time(value: Any) -> bool:
    # Beyond that an integer is no float; NaN is not below it.
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
        path (Path): The directory.
        layer_ranges: For each stage the ``(start, end)`` of its layers.
        files: For each file its size in bytes and its SHA-256, as hexadecimal digits.
        time (float): When it was taken, in seconds since 1970; later than that of all
            that were in its directory, even if the clock was set back.
        n_ranks (int): How many ranks a pipeline had that took it.
        n_steps (int): How many minibatches the pipeline had run.
        schedule (dict): ``'name'``, ``'n_microbatches'`` and the grid as ``'text'``;
            empty if the stages are no longer those of the schedule.
        versions (dict): Versions of Python, NumPy, Chainer and this package.
        values (dict): What :func:`~pipeline.save_snapshot` was given as ``values``.
        n_replicas (int): How many replicas of the pipeline there were.
        replica (int): Whose files are read: where one has something of its own, that.
        differences: What :func:`~pipeline.load_snapshot` with ``strict=False`` did not
            load, as ``differences.missing`` and ``differences.left_over``.
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
        """The number of layers of the model."""
        return self.layer_ranges[-1][1]

    @classmethod
    def open(cls, path: str | os.PathLike) -> Snapshot:
        """Reads the manifest of a snapshot.

        Raises:
            SnapshotError: If there is none, or it was changed. The error names the
                snapshots in a folder of some.
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
        """The SHA-256 of what the manifest says, as hexadecimal digits.

        Equal manifests have equal ones, also with a NaN among the values, which equals
        nothing.
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
        # So that it equals what is read again: tuples as lists, keys as texts.
        text = json.dumps({"divisible": _KIND, "format": _FORMAT, **content})
        return json.loads(text)

    def check_sizes(self) -> None:
        """Checks that all files are there, without reading them.

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
            names: Which files; ``None`` for all.

        Raises:
            SnapshotError: With the name of a file that was truncated or changed.
        """
        self.check_sizes()
        for name in self.files if names is None else names:
            file, digest = self.path / name, hashlib.sha256()
            with naming(file, "read"), open(file, "rb") as opened_file:
                while block := opened_file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() != self.files[name]["sha256"]:
                raise SnapshotError(
                    f"{file} was changed: its SHA-256 is not that of the"
                    f" manifest. Resume from another snapshot"
                )

    def files_of(self, positions: Iterable[int]) -> list[str]:
        """Returns the files that have the layers at some positions."""
        starts = [start for start, _ in self.layer_ranges]
        stages = {bisect_right(starts, position) - 1 for position in positions}
        return [stage_file(number) for number in sorted(stages)]

    def of_replicas(self) -> list[Snapshot]:
        """Returns the snapshot as each replica that there was would read it."""
        return [replace(self, replica=i) for i in range(self.n_replicas)]

    def own_files(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the files with what the replica has otherwise, by what they replace.

        Args:
            names: The names of files that the first replica has written.
        """
        found = {name: replica_file(self.replica, name) for name in names}
        return {name: own for name, own in found.items() if own in self.files}

    @contextlib.contextmanager
    def arrays(
        self,
        names: Sequence[str],
        ledger: Ledger | None = None,
        is_dry_run: bool = False,
    ) -> Iterator[Arrays]:
        """Opens files; their arrays are read when they are asked for.

        Args:
            names: The names of the files.
            ledger: Records what they have, and what is read.
            is_dry_run (bool): Whether whoever reads must change nothing yet.
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
        """Opens the arrays whose keys begin with ``prefix``, of some layers.

        Args:
            positions: The positions of the layers.
            prefix: ``'model/'`` or ``'optimizer/'``.
            ledger: See :meth:`arrays`.
            is_dry_run (bool): See :meth:`arrays`.
        """
        with self.arrays(self.files_of(positions), ledger, is_dry_run) as arrays:
            yield arrays.below(prefix)


def _refuse_folder_of_snapshots(path: Path) -> None:
    """Raises an error with the snapshots in a directory, if there are any."""
    inside = names_in(path) if is_folder(path) else ()
    found = [str(path / name) for name in inside if _is_snapshot(path / name)]
    if found:
        found.sort(key=lambda each: (len(each), each))
        raise SnapshotError(
            f"{path} is a folder of snapshots: name one of them, {' or '.join(found)}"
        )
