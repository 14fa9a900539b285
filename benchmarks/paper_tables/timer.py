"""The timer of steps that all ranks take together."""

from __future__ import annotations

import resource
from typing import NamedTuple

from mpi4py import MPI

from benchmarks.common.hosts import PAUSE
from benchmarks.common.perceptron import step_seconds
from benchmarks.common.results import undisturbed
from benchmarks.paper_tables.durations import is_enough
from benchmarks.paper_tables.steps import Step

#: Pages of memory from the system that a step may take per second on any rank, or in
#: total if the step is shorter. The most steps with more pages that are left out.
PAGES, COLD_STEPS = 5, 4


class Timed(NamedTuple):
    """A timed step.

    Attributes:
        seconds: Seconds of the rank that took longest.
        pages: Most pages of memory that a rank got from the system meanwhile.
        stolen: Part of the machine's time that its hypervisor gave to others.
    """

    seconds: float
    pages: int
    stolen: float


class Timer:
    """Times steps.

    Args:
        comm: Ranks that take the steps.
        quick: Whether one step is enough for a sample. It is timed once, whatever the
            hypervisor does.
    """

    def __init__(self, comm: MPI.Comm, quick: bool) -> None:
        self._comm = comm
        self._quick = quick

    def typical(self, step: Step, is_new: bool) -> Timed:
        """Times a step, several times if it is not a long one.

        Args:
            step: Step of this rank.
            is_new: Whether the step has never run, and must be prepared.

        Returns:
            The middle of the runs, with the largest stolen part of all of them.
        """
        if is_new:
            step_seconds(self._comm, step.prepare, PAUSE)
        runs = [] if self._quick else [self._warm(step)]
        while not is_enough([run.seconds for run in runs], self._quick):
            runs.append(self._timed(step))
        stolen = max(run.stolen for run in runs)
        runs.sort(key=lambda run: run.seconds)
        return runs[(len(runs) - 1) // 2]._replace(stolen=stolen)

    def _warm(self, step: Step) -> Timed:
        """Times a step until it finds all its memory in the process, or times enough.

        Memory from the system is cleared page by page, which takes a host with a part
        of a core up to as long as all that it computes.
        """
        for _ in range(COLD_STEPS + 1):
            found = self._timed(step)
            if found.pages <= PAGES * max(1.0, found.seconds):
                break
        return found

    def _timed(self, step: Step) -> Timed:
        def once() -> tuple[float, int]:
            before = _pages()
            seconds = step_seconds(self._comm, step, PAUSE)
            return seconds, _pages() - before

        found, stolen = undisturbed(self._comm, once, patient=not self._quick)
        seconds, pages = found
        return Timed(seconds, self._comm.allreduce(pages, MPI.MAX), stolen)


def _pages() -> int:
    """Counts the pages of memory that this process has got from the system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
