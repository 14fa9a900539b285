"""A run's series of snapshots: the one saved last is the newest, and old ones go."""

from __future__ import annotations

import contextlib
import math
import weakref
from dataclasses import dataclass
from pathlib import Path

from pipeline.pipeline import Pipeline
from pipeline.snapshots.directories import remove_whole
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import Search, age
from pipeline.snapshots.listing import is_file, matching
from pipeline.snapshots.manifest import MANIFEST
from pipeline.snapshots.names import PARTIAL, replaced_patterns, series
from pipeline.snapshots.remarks import remark


@dataclass
class Clock:
    """A clock that a run's snapshots are dated by, later than that of the machine.

    Attributes:
        latest (float): The time of the last one that was loaded or saved.
    """

    latest: float = -math.inf

    def note(self, time: float) -> None:
        """Notes the time of a snapshot: the next one is later."""
        self.latest = max(self.latest, time)


_clocks: weakref.WeakKeyDictionary[Pipeline, Clock] = weakref.WeakKeyDictionary()


def clock_of(pipeline: Pipeline) -> Clock:
    """Returns the clock of the run that a pipeline trains."""
    return _clocks.setdefault(pipeline, Clock())


@dataclass(frozen=True)
class Series:
    """The snapshots among which a new one is the newest.

    Attributes:
        folder: Where they are.
        pattern: What their names look like below it, with ``*`` for anything.
        clock: That of the run.
        n_retains: How many of them to keep; at most 0 for all.
    """

    folder: Path
    pattern: str
    clock: Clock
    n_retains: int

    def next_time(self, path: Path, now: float) -> float:
        """Returns the time for a snapshot that makes it the newest.

        A clock that is wrong, or was set back, would let a run go on from an older
        snapshot at every restart. So the time is the clock's, but never that of a
        snapshot that is there, or that the run has loaded or saved, nor before it.

        Args:
            path: Of the snapshot.
            now: What the clock says, in seconds since 1970.
        """
        latest = max(now, _after(self.clock.latest))
        try:
            for other in self._others(path):
                # What has no manifest that can be read is no candidate.
                with contextlib.suppress(SnapshotError):
                    if not other.name.endswith(PARTIAL) and is_file(other / MANIFEST):
                        latest = max(latest, _after(Snapshot.open(other).time))
        except SnapshotError as error:
            remark(f"the snapshot {path} is dated by the clock alone: {error}")
        return latest

    def _others(self, path: Path) -> set[Path]:
        """Returns what lies beside a snapshot, or fits the pattern."""
        patterns = (self.pattern, *replaced_patterns(self.pattern))
        found = {other for each in patterns for other in matching(self.folder, each)}
        return found.union(matching(path.parent, "*"))

    def remove_old(self, path: Path) -> None:
        """Removes older snapshots whose names differ from this one's in numbers only.

        What cannot be looked for or removed stays, and does not stop the training.

        Args:
            path: The newest snapshot.
        """
        if self.n_retains <= 0:
            return
        try:
            found = Search(self.folder, self.pattern).find()
        except SnapshotError as error:
            remark(f"the snapshot {path} is saved, but older ones stay: {error}")
            return
        found = [each for each in found if self._name(each.path) == self._name(path)]
        # If another run has saved a newer one since, that one removes what is older.
        ages = [age(each) for each in found if each.path == path]
        others = [each.path for each in found if ages and age(each) < ages[0]]
        for other in others[self.n_retains - 1 :]:
            remove_whole(other)

    def _name(self, path: Path) -> str:
        """Returns what the names of these have in common, folders included."""
        return series(str(path.relative_to(self.folder)))


def _after(time: float) -> float:
    return math.nextafter(time, math.inf)
