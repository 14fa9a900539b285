"""The arrays that a rank has to save, and their files, manifest and name.

Each rank collects its arrays by file, and sends the others an announcement. Then it
writes its files. Rank 0 writes the manifest, and gives the snapshot its name.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible import __version__
from divisible.planning.retained_arrays import FULL
from divisible.schedules import Schedule
from divisible.streaming.mapped import mapped_array, parts_of
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.arrays import of_range, write_arrays
from pipeline.snapshots.directories import Draft
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import Series
from pipeline.snapshots.layers import model_arrays
from pipeline.snapshots.names import COMMON, LOSS, replica_file, stage_file
from pipeline.snapshots.objects import check_objects, dump_random_states, object_arrays
from pipeline.snapshots.optimizers import OptimizersOfStages, covers, optimizer_arrays
from pipeline.snapshots.product_dtypes import version_of_products

#: Arrays by key, by file.
Contents = dict[str, dict[str, np.ndarray]]
# The schedule that each pipeline saved last, with its fields in the manifest.
_schedules: weakref.WeakKeyDictionary[
    BetweenSteps, tuple[Schedule, Mapping[str, Any]]
] = weakref.WeakKeyDictionary()


class SaveAnnouncement(NamedTuple):
    """A rank's description of its part, for the others, before it writes.

    Attributes:
        place: Number of its replica, and of its rank in the replica.
        path: Path of the snapshot.
        folder: Directory to write into; that of rank 0 is used.
        layer_ranges: Ranges of layers of its stages, by number.
        is_first: Whether it has the first stage.
        objects: State of objects that it alone has besides its stages.
        random_states: States of its random generators.
        digests: Digests of its arrays by file and key, if there are several replicas.
    """

    place: tuple[int, int]
    path: str
    folder: str
    layer_ranges: Mapping[int, tuple[int, int]]
    is_first: bool
    objects: Mapping[str, np.ndarray]
    random_states: str
    digests: Mapping[str, Mapping[str, str]]


def collect(
    pipeline: BetweenSteps,
    optimizers: Any,
    state: Mapping[str, Any],
    values: Mapping[str, Any],
    draft: Draft,
) -> tuple[Contents, SaveAnnouncement]:
    """Returns this rank's arrays, by file, and its announcement."""
    check_objects(state)
    json.dumps(values)
    contents = _layer_contents(pipeline, OptimizersOfStages(optimizers, pipeline))
    objects = {}
    ranks = pipeline.internals.ranks
    digests = _digests(contents) if ranks.n_replicas > 1 else {}
    if ranks.is_chief or (pipeline.is_first and ranks.replica == 0):
        objects = object_arrays({**state, "pipeline": pipeline})
    if ranks.is_chief:
        contents[COMMON] = objects
        objects = {}
        draft.begin()
    ranges = {number: stage.layer_range for number, stage in pipeline.stages.items()}
    mine = SaveAnnouncement(
        (ranks.replica, ranks.rank),
        str(draft.path),
        str(draft.folder),
        ranges,
        pipeline.is_first,
        objects,
        dump_random_states(state),
        digests,
    )
    return contents, mine


def _layer_contents(pipeline: BetweenSteps, optimizers: OptimizersOfStages) -> Contents:
    """Returns the arrays of this rank's stages and loss, by file."""
    contents = {}
    of_stages = optimizers.of_stages
    states = [optimizer_arrays(each, optimizers.names(each)) for each in of_stages]
    for number, stage in pipeline.stages.items():
        covering = [
            of_range(state, stage.layer_range)
            for optimizer, state in zip(of_stages, states)
            if covers(optimizer, stage)
        ]
        model = model_arrays(stage)
        contents[stage_file(number)] = _file_contents(
            f"parameters of stage {number}", model, covering
        )
    if pipeline.is_last and optimizers.loss_links:
        model = object_arrays(optimizers.loss_links)
        covering = [optimizer_arrays(each) for each in optimizers.of_loss]
        contents[LOSS] = _file_contents("the loss", model, covering)
    return contents


def _file_contents(
    what: str,
    model: Mapping[str, np.ndarray],
    optimizers: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Returns the arrays of one file: of a model, and of its optimizer if any."""
    if len(optimizers) > 1:
        raise ValueError(f"{len(optimizers)} optimizers update {what}; only one can")
    contents = {f"model/{key}": value for key, value in model.items()}
    for optimizer in optimizers:
        contents.update((f"optimizer/{key}", v) for key, v in optimizer.items())
    return contents


def common_arrays(
    announcements: Sequence[SaveAnnouncement], objects: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the arrays that belong to no stage; ``objects`` are rank 0's.

    Random states are numbered by replica, whatever the placement of the grid.
    """
    merged: dict[str, np.ndarray] = {}
    for theirs in (*(each.objects for each in announcements), objects):
        merged.update((f"state/{key}", value) for key, value in theirs.items())
    by_place = sorted(announcements, key=lambda each: each.place)
    for number, theirs in enumerate(by_place):
        merged[f"random/{number}"] = np.array(theirs.random_states.encode())
        if theirs.is_first and theirs.place[0] == 0:
            merged["random/first"] = merged[f"random/{number}"]
    return merged


def of_replica(
    contents: Contents,
    mine: SaveAnnouncement,
    announcements: Sequence[SaveAnnouncement],
) -> Contents:
    """Returns the arrays that a rank writes: in later replicas, those that differ.

    Args:
        contents: All arrays of the rank, by file.
        mine: Announcement of the rank.
        announcements: Announcements of all ranks.
    """
    replica, rank = mine.place
    if replica == 0:
        return contents
    (first,) = (each.digests for each in announcements if each.place == (0, rank))
    own = {}
    for name, arrays in contents.items():
        there, here = first.get(name, {}), mine.digests[name]
        found = {k: value for k, value in arrays.items() if there.get(k) != here[k]}
        if found:
            own[replica_file(replica, name)] = found
    return own


def _digests(contents: Contents) -> dict[str, dict[str, str]]:
    return {
        name: {key: _digest(np.asarray(value)) for key, value in arrays.items()}
        for name, arrays in contents.items()
    }


def _digest(array: np.ndarray) -> str:
    kind = f"{array.dtype.str} {array.shape}"
    digest = hashlib.blake2b(digest_size=16)
    for part in parts_of(array):
        has_objects = part.dtype.hasobject
        digest.update(repr(part).encode() if has_objects else part.tobytes())
    return digest.hexdigest() + kind


@dataclass
class Writing:
    """The arrays and files of a rank, once all ranks know what to save.

    Only the arrays depend on what training changes afterwards.

    Attributes:
        contents: This rank's arrays, by file; they are dropped when written.
        draft: Directory in which rank 0 makes the snapshot.
        snapshot: The manifest so far.
        series: Snapshots among which it is the newest.
    """

    contents: Contents
    draft: Draft
    snapshot: Snapshot
    series: Series

    @classmethod
    def of(
        cls,
        pipeline: BetweenSteps,
        announcements: Sequence[SaveAnnouncement],
        contents: Contents,
        values: Mapping[str, Any],
        draft: Draft,
        series: Series,
    ) -> Writing:
        """Returns the work of this rank, from the announcements of all ranks."""
        ranges = {}
        for each in announcements:
            ranges.update(each.layer_ranges)
        snapshot = Snapshot(
            path=Path(announcements[0].folder),
            layer_ranges=[ranges[number] for number in sorted(ranges)],
            files={},
            time=0.0,
            n_ranks=pipeline.schedule.n_ranks,
            n_replicas=pipeline.n_replicas,
            n_steps=pipeline.n_steps,
            schedule=_schedule_of(pipeline),
            versions={
                "chainer": chainer.__version__,
                "divisible": __version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                **version_of_products(),
            },
            # A copy: the user's lists and dictionaries may change.
            values=json.loads(json.dumps(values)),
        )
        return cls(contents, draft, snapshot, series)

    @property
    def has_streamed(self) -> bool:
        """Whether some arrays are on disk, because they do not fit in memory."""
        return any(
            mapped_array(value) is not None
            for arrays in self.contents.values()
            for value in arrays.values()
        )

    @property
    def folder(self) -> Path:
        """Directory into which all ranks write."""
        return self.snapshot.path

    def copy_arrays(self) -> None:
        """Copies the arrays that training may change."""
        self.contents = {
            name: {key: _kept(value) for key, value in arrays.items()}
            for name, arrays in self.contents.items()
        }

    def write_files(self) -> dict[str, dict[str, Any]]:
        """Writes this rank's files, and returns their entries in the manifest."""
        return {
            name: write_arrays(self.folder / name, self.contents.pop(name))
            for name in list(self.contents)
        }

    def finish(self, written: Sequence[Mapping[str, Any]]) -> None:
        """Writes the manifest, and gives the snapshot its name; called on rank 0.

        Args:
            written: Results of :meth:`write_files` on each rank.
        """
        path, remarks = self.draft.path, self.draft.remarks
        replace(
            self.snapshot,
            files={name: entry for rank in written for name, entry in rank.items()},
            time=self.series.next_time(path, time.time(), remarks),
        ).write_manifest()
        if self.draft.finish():
            self.series.remove_old(path, remarks)


def _schedule_of(pipeline: BetweenSteps) -> Mapping[str, Any]:
    """Returns the manifest's fields of the schedule, which seldom changes."""
    schedule, fields = _schedules.get(pipeline, (None, {}))
    if schedule is not pipeline.schedule:
        schedule = pipeline.schedule
        fields = {
            "name": schedule.name,
            "n_microbatches": schedule.n_microbatches,
            "text": str(schedule),
        }
        if (hold_dtype := pipeline.internals.hold_dtype) != FULL:
            fields["hold_dtype"] = hold_dtype
        if message_dtypes := pipeline.internals.message_dtypes:
            fields["message_dtypes"] = message_dtypes
        _schedules[pipeline] = schedule, fields
    return fields


def n_bytes_to_copy(contents: Contents) -> int:
    """Returns the number of bytes that :meth:`Writing.copy_arrays` copies."""
    arrays = [value for each in contents.values() for value in each.values()]
    return sum(np.asarray(each).nbytes for each in arrays if not _is_constant(each))


def _kept(value: Any) -> Any:
    return value if _is_constant(value) else np.array(value, copy=True, order="K")


def _is_constant(value: Any) -> bool:
    """Returns whether nothing can change an array.

    Arrays from a GPU were copied for the snapshot, and do not change. Others may: a
    frozen parameter, for example, may be a moving average.
    """
    is_array = isinstance(value, np.ndarray) and value.base is None
    return is_array and not value.flags.writeable
