"""The files of a snapshot, and the manifest that says what they must be.

::

    result/snapshot_iter_1000/
        manifest.json      which layers are in which file; sizes and checksums; written
        stage-0.npz          last, when all ranks have written their files
        stage-1.npz        of each stage: model/7/W, optimizer/7/W/v, optimizer/t
        loss.npz           if the loss has parameters: model/loss/W, optimizer/W/v
        replica-1-stage-0.npz  of later replicas what they have otherwise, if anything
        common.npz         what no stage owns: iterators, trainer, random states

Several hosts need a file system that they share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from divisible.files import flush
from pipeline.snapshots import manifest
from pipeline.snapshots.arrays import Arrays, opened
from pipeline.snapshots.differences import Differences, Ledger
from pipeline.snapshots.errors import SnapshotError, naming
from pipeline.snapshots.listing import is_file, is_folder, names_in
from pipeline.snapshots.manifest import (
    MANIFEST,
    checksum,
    replica_file,
    stage_file,
)

# What is known of a snapshot beside what its manifest says.
_NOT_WRITTEN = ("path", "replica", "differences")
_FORMAT = 1


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
        versions (dict): Of Python, NumPy, Chainer and this package.
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
            SnapshotError: If there is none, or it was changed. Of a folder of
                snapshots, with their names.
        """
        path = Path(path)
        file = path / MANIFEST
        with naming(file, "read"):
            try:
                content = manifest.read_manifest(path)
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
            return cls(path=path, **manifest.checked(content))
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
        return manifest.labelled({"format": _FORMAT, **content})

    def check_sizes(self) -> None:
        """Looks whether all files are there, without reading them.

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
            names: Of the files that the first replica has written.
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
            names: Of the files.
            ledger: Notes what they have, and what is read.
            is_dry_run (bool): Whether who reads must change nothing yet.
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
            positions: Of the layers.
            prefix: ``'model/'`` or ``'optimizer/'``.
            ledger: As of :meth:`arrays`.
            is_dry_run (bool): Likewise.
        """
        with self.arrays(self.files_of(positions), ledger, is_dry_run) as arrays:
            yield arrays.below(prefix)


def _refuse_folder_of_snapshots(path: Path) -> None:
    """Names the snapshots in a directory, if there are any."""
    inside = names_in(path) if is_folder(path) else ()
    found = [str(path / name) for name in inside if manifest.is_snapshot(path / name)]
    if found:
        found.sort(key=lambda each: (len(each), each))
        raise SnapshotError(
            f"{path} is a folder of snapshots: name one of them, {' or '.join(found)}"
        )
