"""The writing of a snapshot: a rank's files; on rank 0 the manifest and the name."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chainer
import numpy as np

from divisible import __version__
from divisible.streaming.mapped import mapped_array
from pipeline.pipeline import Pipeline
from pipeline.snapshots.arrays import write_arrays
from pipeline.snapshots.collecting import Announcement, Contents
from pipeline.snapshots.directories import Draft
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import Series


@dataclass
class Writing:
    """The work of a rank, once it is known what is to be saved.

    Nothing here depends on what the training changes afterwards, but the arrays.

    Attributes:
        contents: This rank's arrays, by file; what is written is dropped.
        draft: Where rank 0 makes the snapshot.
        snapshot: It, as far as it is known.
        series: Those among which it is the newest.
    """

    contents: Contents
    draft: Draft
    snapshot: Snapshot
    series: Series

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        announcements: Sequence[Announcement],
        contents: Contents,
        values: Mapping[str, Any],
        draft: Draft,
        series: Series,
    ) -> Writing:
        """Returns what is to be done, from what all ranks have said."""
        ranges = {}
        for each in announcements:
            ranges.update(each.layer_ranges)
        schedule = pipeline.schedule
        snapshot = Snapshot(
            path=Path(announcements[0].folder),
            layer_ranges=[ranges[number] for number in sorted(ranges)],
            files={},
            time=0.0,
            n_ranks=schedule.n_ranks,
            n_replicas=pipeline.ranks.n_replicas,
            n_steps=pipeline.n_steps,
            schedule={
                "name": schedule.name,
                "n_microbatches": schedule.n_microbatches,
                "text": str(schedule),
            },
            versions={
                "chainer": chainer.__version__,
                "divisible": __version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            # A copy: the user's lists and dictionaries may change.
            values=json.loads(json.dumps(values)),
        )
        return cls(contents, draft, snapshot, series)

    @property
    def has_streamed(self) -> bool:
        """Whether some of the arrays are on disk, since memory has no room for them."""
        return any(
            mapped_array(value) is not None
            for arrays in self.contents.values()
            for value in arrays.values()
        )

    @property
    def folder(self) -> Path:
        """Where all ranks write."""
        return self.snapshot.path

    def copy_arrays(self) -> None:
        """Makes the arrays independent of what the training changes."""
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
        """Writes the manifest, and gives the snapshot its name; rank 0 does.

        Args:
            written: What :meth:`write_files` returned on each rank.
        """
        path, remarks = self.draft.path, self.draft.remarks
        replace(
            self.snapshot,
            files={name: entry for rank in written for name, entry in rank.items()},
            time=self.series.next_time(path, time.time(), remarks),
        ).write_manifest()
        if self.draft.finish():
            self.series.remove_old(path, remarks)


def n_bytes_to_copy(contents: Contents) -> int:
    """Returns how many bytes :meth:`Writing.copy_arrays` takes."""
    arrays = [value for each in contents.values() for value in each.values()]
    return sum(np.asarray(each).nbytes for each in arrays if not _is_constant(each))


def _kept(value: Any) -> Any:
    return value if _is_constant(value) else np.array(value, copy=True, order="K")


def _is_constant(value: Any) -> bool:
    """Says whether nobody can change an array.

    Such as come from a GPU, which were copied for the snapshot. Of others nobody can
    tell: a frozen parameter may be that of a moving average.
    """
    is_array = isinstance(value, np.ndarray) and value.base is None
    return is_array and not value.flags.writeable
