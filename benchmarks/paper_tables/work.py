"""What the hosts do: measure steps, or what the layers cost.

The models are built in `deferred_init`, so that no host takes memory for the layers of
another.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Callable

from _common import machine, quiet_barrier
from _hosts import PAUSE
from _mlp import measured_costs, step_seconds, undivided_step
from _probe import busy_seconds, message_seconds
from mpi4py import MPI

from divisible import Divisible, profile
from paper_tables.models import build, equal_cuts, minibatch
from paper_tables.points import PROBES, SAMPLES, SERIAL, Point, from_json
from paper_tables.samples import Probe, Sample, append, append_probe
from pipeline import Pipeline, abort_on_error

#: Seconds that a rank may wait for another: the smallest share of a core is slow.
TIMEOUT = 3600.0
#: Seconds of a step that is measured again, because it was the first of its size.
SHORT = 5.0
#: Times that a message goes to and fro.
N_PINGS = 21


def work(job: dict[str, Any], report: Path) -> None:
    """Does what the job says; what is measured goes into files of its own."""
    abort_on_error()
    if job["task"] == "profile":
        measure_layers(from_json(job["point"]), job["samples"], Path(job["file"]))
        return
    folder = Path(job["folder"])
    for samples in job["probes"]:
        probe(MPI.COMM_WORLD, from_json(job["point"]), samples, folder / PROBES)
    Steps(MPI.COMM_WORLD, folder / SAMPLES).measure(job["todo"])


def measure_layers(point: Point, samples: int, file: Path) -> None:
    """Profiles a model at a size of microbatch."""
    x, t = minibatch(point, samples)
    profile(build(point), x, t, repeat=3).save(file)


def probe(comm: MPI.Comm, point: Point, samples: int, file: Path) -> None:
    """Measures how fast the hosts are while each runs its layers of the paper's cut.

    Args:
        comm: A rank on each host.
        point: Of the model.
        samples: Of a microbatch.
        file: Of the probes.
    """
    x, _ = minibatch(point, samples)
    seconds = busy_seconds(comm, lambda: build(point), equal_cuts(point), x, PAUSE)
    if comm.rank == 0:
        append_probe(file, Probe(point.group, samples, seconds))
        print(f"{point.group}: {seconds:.3f} s for {samples} samples", flush=True)


class Steps:
    """Measures steps on hosts that are up.

    Args:
        comm: A rank on each host.
        file: Of the samples.
    """

    def __init__(self, comm: MPI.Comm, file: Path) -> None:
        self._comm = comm
        self._file = file
        self._latency = 0.0
        if comm.size > 1:
            self._latency = statistics.median(message_seconds(comm, 8, N_PINGS))
        self._where, load = machine("numpy", "chainer", "mpich").rsplit(", ", 1)
        self._load = float(load.split()[-1])
        # The stage of the last point, by what it depends on.
        self._stage: tuple[Any, Divisible | None] = (None, None)

    def measure(self, todo: list[dict]) -> None:
        """Measures points and rounds in turn; writes each sample as it comes.

        Args:
            todo: Dictionaries of ``point``, ``cuts`` and ``round``; the points with
                the largest microbatches first.
        """
        is_first = True
        for entry in todo:
            point = from_json(entry["point"])
            step = self._undivided if point.schedule == SERIAL else self._pipelined
            if is_first and point.schedule != SERIAL:
                # Gets the memory for the largest microbatches from the system.
                step(point, entry["cuts"])
                is_first = False
            seconds, costs = step(point, entry["cuts"])
            if self._comm.rank == 0:
                sample = Sample(
                    point,
                    entry["round"],
                    seconds,
                    entry["cuts"],
                    *costs,
                    latency=self._latency,
                    machine=self._where,
                    load=self._load,
                    date=time.strftime("%Y-%m-%d"),
                )
                append(self._file, sample)
                print(f"{point}: {seconds:.3f} s", flush=True)

    def _pipelined(self, point: Point, cuts: list[int]) -> tuple[float, list]:
        rank, n_stages = self._comm.rank, len(cuts) - 1
        comm = self._comm.Split(rank < n_stages, rank)
        try:
            if rank >= n_stages:
                # More hosts than stages: only the timing needs this one.
                self._seconds(lambda: None)
                return self._seconds(lambda: None), [[], [], []]
            x, t = minibatch(point, point.batch)
            stage = self._divided(point, *cuts[rank : rank + 2])
            n = point.microbatches
            with Pipeline(stage, comm, n, point.schedule, timeout=TIMEOUT) as pipe:
                # Gradients are made in the first step; one sample for each microbatch
                # is enough for that. How large the messages are is new to the second:
                # where it is so short that this could show, the third one counts.
                self._seconds(lambda: pipe.step(x[:n], t[:n]))
                seconds = self._seconds(lambda: pipe.step(x, t))
                if seconds < SHORT:
                    seconds = self._seconds(lambda: pipe.step(x, t))
                costs = measured_costs([pipe.timeline()], n_stages)
        finally:
            comm.Free()
        return seconds, [
            list(map(float, costs.forward)),
            list(map(float, costs.backward_input)),
            list(map(float, costs.backward_weight)),
        ]

    def _undivided(self, point: Point, cuts: list[int]) -> tuple[float, list]:
        """Times the undivided model on the first host, while the others sleep."""
        step: Callable[[], Any] = lambda: None  # noqa: E731
        if self._comm.rank == 0:
            x, t = minibatch(point, point.batch)
            model = self._divided(point, None, None)
            undivided_step(model, x[:1], t[:1])()
            step = undivided_step(model, x, t)
        quiet_barrier(self._comm, PAUSE)
        return self._seconds(step), [[], [], []]

    def _divided(self, point: Point, start: int | None, end: int | None) -> Divisible:
        key = (point.model, point.size, start, end)
        if self._stage[0] != key:
            # The one before is freed first.
            self._stage = (None, None)
            self._stage = (key, build(point).divide(start, end))
        return self._stage[1]

    def _seconds(self, step: Callable[[], Any]) -> float:
        return step_seconds(self._comm, step, PAUSE)
