"""The work of the hosts: to measure steps, or the costs of layers.

The models are built in `deferred_init`, so that no host takes memory for the layers of
another.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

from mpi4py import MPI

from benchmarks.common.hosts import PAUSE
from benchmarks.common.perceptron import step_seconds, undivided_step
from benchmarks.common.results import machine, quiet_barrier, undisturbed
from benchmarks.paper_tables.models import build, minibatch
from benchmarks.paper_tables.points import SERIAL, Point, from_json
from benchmarks.paper_tables.profiles import medians
from benchmarks.paper_tables.samples import Sample, append
from divisible import Divisible, Profile, profile
from pipeline import Pipeline

#: Seconds that a rank may wait for another: the smallest share of a core is slow.
TIMEOUT = 3600.0
#: Profiles that are made of a model at least, and seconds that they take together.
PROFILES, PROFILE_SECONDS = 3, 30.0
#: Seconds that the timed steps of a sample take together at least, unless they are so
#: many, and how many they are, unless these take more than so many seconds. (Of 16
#: hosts a step differs by 5% from the next.)
SHORT, MANY, STEPS, LONG = 15.0, 15, 3, 60.0
#: Pages of memory from the system that a step may take per second on any rank, or in
#: total if the step is shorter. The most steps with more pages that are left out.
PAGES, COLD_STEPS = 5, 4


def work(job: dict[str, Any]) -> None:
    """Does what the job says; what is measured goes into files of its own."""
    if job["task"] == "profile":
        measure_layers(from_json(job["point"]), job["samples"], Path(job["file"]))
        return
    Steps(MPI.COMM_WORLD, Path(job["file"])).measure(job["todo"])


def measure_layers(point: Point, samples: int, file: Path) -> None:
    """Profiles a model at a size of microbatch.

    The machine is faster in some seconds than in others, and the runs of a layer follow
    each other. So the whole is measured several times.
    """
    model, (x, t) = build(point), minibatch(point, samples)
    profiles: list[Profile] = []
    begin = time.perf_counter()
    while len(profiles) < PROFILES or time.perf_counter() - begin < PROFILE_SECONDS:
        found, _ = undisturbed(MPI.COMM_WORLD, lambda: profile(model, x, t, repeat=3))
        profiles.append(found)
    medians(profiles).save(file)


class Timed(NamedTuple):
    """A step: its seconds, and the pages of memory that it got from the system."""

    seconds: float
    pages: int


class Steps:
    """Measures steps on hosts that are up.

    Args:
        comm: Communicator with a rank on each host.
        file: File of the samples.
    """

    def __init__(self, comm: MPI.Comm, file: Path) -> None:
        self._comm = comm
        self._file = file
        self._where, load = machine("numpy", "chainer", "mpich").rsplit(", ", 1)
        self._load = float(load.split()[-1])
        # The stage of the last point, by what it depends on.
        self._stage: tuple[Any, Divisible | None] = (None, None)
        # Largest part of the present point.
        self._stolen = 0.0

    def measure(self, todo: list[dict]) -> None:
        """Measures points and rounds in turn, and writes each sample at once.

        Args:
            todo: Dictionaries of ``point``, ``cuts`` and ``round``.
        """
        for entry in todo:
            point = from_json(entry["point"])
            step = self._undivided if point.schedule == SERIAL else self._pipelined
            self._stolen = 0.0
            timed = step(point, entry["cuts"])
            if self._comm.rank == 0:
                sample = Sample(
                    point,
                    entry["round"],
                    timed.seconds,
                    entry["cuts"],
                    pages=timed.pages,
                    stolen=round(self._stolen, 4),
                    machine=self._where,
                    load=self._load,
                    date=time.strftime("%Y-%m-%d"),
                )
                append(self._file, sample)
                print(f"{point}: {sample.seconds:.3f} s", flush=True)

    def _pipelined(self, point: Point, cuts: list[int]) -> Timed:
        """Times a step on a rank for each stage."""
        rank = self._comm.rank
        n_stages = len(cuts) - 1
        comm = self._comm.Split(rank < n_stages, rank)
        try:
            if rank >= n_stages:
                # More hosts than stages: only the timing needs this one.
                return self._typical(lambda: None)
            x, t = minibatch(point, point.batch)
            stage = self._divided(point, *cuts[rank : rank + 2])
            n = point.microbatches
            with Pipeline(
                stage, comm, n_microbatches=n, schedule=point.schedule, timeout=TIMEOUT
            ) as pipe:
                # In the first, ranks agree on messages' shapes; none is awaited before.
                pipe.step(x, t)
                return self._typical(lambda: pipe.step(x, t))
        finally:
            comm.Free()

    def _undivided(self, point: Point, cuts: list[int]) -> Timed:
        """Times the undivided model on the first host, while the others sleep."""
        step: Callable[[], Any] = lambda: None  # noqa: E731
        if self._comm.rank == 0:
            x, t = minibatch(point, point.batch)
            model = self._divided(point, None, None)
            step = undivided_step(model, x, t)
        quiet_barrier(self._comm, PAUSE)
        return self._typical(step)

    def _divided(self, point: Point, start: int | None, end: int | None) -> Divisible:
        key = (point.model, point.size, start, end)
        if self._stage[0] != key:
            # The one before is freed first.
            self._stage = (None, None)
            self._stage = (key, build(point).divide(start, end))
        return self._stage[1]

    def _typical(self, step: Callable[[], Any]) -> Timed:
        """Times a step, several times if it is not a long one: returns the middle."""
        steps = [self._warm(step)]
        total = steps[0].seconds
        while (total < SHORT and len(steps) < MANY) or (
            total < LONG and len(steps) < STEPS
        ):
            steps.append(self._timed(step))
            total += steps[-1].seconds
        steps.sort(key=lambda timed: timed.seconds)
        return steps[(len(steps) - 1) // 2]

    def _warm(self, step: Callable[[], Any]) -> Timed:
        """Times a step until it finds all its memory in the process, or times enough.

        Memory from the system is cleared page by page, which takes a host with a part
        of a core up to as long as all that it computes.
        """
        for _ in range(COLD_STEPS + 1):
            found = self._timed(step)
            if found.pages <= PAGES * max(1.0, found.seconds):
                break
        return found

    def _timed(self, step: Callable[[], Any]) -> Timed:
        def once() -> tuple[float, int]:
            before = _pages()
            seconds = step_seconds(self._comm, step, PAUSE)
            return seconds, _pages() - before

        (seconds, pages), stolen = undisturbed(self._comm, once)
        self._stolen = max(self._stolen, stolen)
        return Timed(seconds, self._comm.allreduce(pages, MPI.MAX))


def _pages() -> int:
    """Counts the pages of memory that this process has got from the system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
