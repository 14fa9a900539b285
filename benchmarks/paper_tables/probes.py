"""What is measured right before steps: how fast the hosts are, and their links."""

from __future__ import annotations

import math
import statistics
from typing import Any, Callable

import numpy as np
from _common import T, undisturbed
from _hosts import PAUSE
from _probe import Load, Speed
from mpi4py import MPI

from divisible import Divisible
from paper_tables.models import minibatch
from paper_tables.points import Point

#: Seconds that the hosts are busy at least for a first look, or one after the other,
#: and before a step: as a part of what that takes, and at most.
LEAST, PART, MOST = 4.0, 0.5, 15.0


class Probe:
    """Asks the hosts of a point for their speed before each of its steps.

    Args:
        comm: The ranks that have a stage.
        stage: Of this rank.
        point: Whose microbatches it runs.
    """

    def __init__(self, comm: MPI.Comm, stage: Divisible, point: Point) -> None:
        x, _ = minibatch(point, point.samples)
        self._comm = comm
        self._load = Load(comm, stage, x, PAUSE)
        # With one microbatch nobody has anything else to do while messages go.
        self._several = point.microbatches > 1
        self._split = point.schedule.startswith("zb")
        self._speeds: list[Speed] = []
        # Of each stage, alone over while all are busy.
        self._alone: list[np.ndarray] = []
        self._delays: dict[str, list[float]] = {}
        #: Part of the machine's time that was given to others meanwhile, at most.
        self.stolen = 0.0

    def delays(self, bandwidth: float) -> None:
        """Measures how long messages take.

        Args:
            bandwidth: Of the links, in bytes per second.
        """
        seconds = self._measured(LEAST).seconds
        phase = statistics.fmean(seconds) / 2

        def delays(computes: bool) -> list[float]:
            return self._undisturbed(
                lambda: self._load.delays(phase, bandwidth, computes, self._split)
            )

        idle = delays(False)
        late = delays(True) if self._several else idle
        self._delays = {"delay": late, "idle_delay": idle}

    def speed(self, step: float) -> None:
        """Measures how fast the hosts are just now.

        Args:
            step: Seconds of the step that comes next, about.
        """
        found = self._measured(min(max(LEAST, PART * step), MOST))
        self._speeds.append(found)
        alone = self._undisturbed(lambda: self._load.alone(LEAST))
        self._alone.append(np.divide(alone, found.core))

    def found(self) -> dict[str, Any]:
        """Returns what a `Sample` has of it: the means of all speeds."""
        busy = zip(*(speed.seconds for speed in self._speeds))
        spread = zip(*(speed.spread for speed in self._speeds))
        return {
            "busy": [statistics.fmean(each) for each in busy],
            "spread": [
                math.sqrt(statistics.fmean(part**2 for part in each)) for each in spread
            ],
            "alone": np.mean(self._alone, axis=0).tolist(),
            "probes": len(self._speeds),
            **self._delays,
        }

    def _measured(self, seconds: float) -> Speed:
        return self._undisturbed(lambda: self._load.speed(self._several, seconds))

    def _undisturbed(self, measure: Callable[[], T]) -> T:
        found, stolen = undisturbed(self._comm, measure)
        self.stolen = max(self.stolen, stolen)
        return found
