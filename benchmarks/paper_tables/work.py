"""The work of hosts: they time steps, or the costs of layers.

The models are built in `deferred_init`, so that no host takes memory for the layers of
another.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

from benchmarks.common.results import machine, undisturbed
from benchmarks.paper_tables.arithmetic import library, put_in_force
from benchmarks.paper_tables.durations import PROFILES, seconds_left
from benchmarks.paper_tables.models import build, minibatch
from benchmarks.paper_tables.points import Point, from_json
from benchmarks.paper_tables.profiles import medians
from benchmarks.paper_tables.samples import Sample, append
from benchmarks.paper_tables.steps import Steps
from benchmarks.paper_tables.timer import Timer
from divisible import Profile, profile

#: Seconds that the profiles of a model take together at least. A quick run makes one.
PROFILE_SECONDS = 30.0


def work(job: dict[str, Any]) -> None:
    """Does what the job says; what is measured goes into files of its own."""
    if job["task"] == "profile":
        point = from_json(job["point"])
        measure_layers(point, job["samples"], Path(job["file"]), job["quick"])
    else:
        measure_steps(MPI.COMM_WORLD, job)


def measure_layers(point: Point, samples: int, file: Path, quick: bool) -> None:
    """Profiles a model at a size of microbatch.

    The machine is faster in some seconds than in others, and the runs of a layer follow
    each other. So the whole is measured several times, unless it must be quick.
    """
    put_in_force(point.kernels)
    model, (x, t) = build(point), minibatch(point, samples)
    profiles: list[Profile] = []
    begin = time.perf_counter()
    while len(profiles) < PROFILES or time.perf_counter() - begin < PROFILE_SECONDS:
        found, _ = undisturbed(
            MPI.COMM_WORLD, lambda: profile(model, x, t, repeat=3), patient=not quick
        )
        profiles.append(found)
        if quick:
            break
    medians(profiles).save(file)


def measure_steps(comm: MPI.Comm, job: dict[str, Any]) -> None:
    """Measures points of one group in turn, and writes each sample at once.

    Args:
        comm: Communicator with a rank on each host.
        job: Dictionary of ``todo``, the samples to measure; ``begun``, the time at
            which the run began; ``share``, the part of a core of each host; ``quick``;
            and ``file``, that of the samples. Each sample is a dictionary of ``point``,
            ``cuts``, ``round``, and the estimated seconds ``done`` up to its end and
            ``left`` after it.
    """
    where, load = machine("numpy", "chainer", "mpich").rsplit(", ", 1)
    timer = Timer(comm, job["quick"])
    arithmetic = from_json(job["todo"][0]["point"]).arithmetic
    put_in_force(arithmetic.kernels)
    with Steps(comm) as steps:
        for entry in job["todo"]:
            point = from_json(entry["point"])
            is_new = point not in steps
            step = steps.get(point, entry["cuts"])
            timed = timer.typical(step, is_new)
            steps.check(point)
            if comm.rank > 0:
                continue
            sample = Sample(
                point,
                entry["round"],
                timed.seconds,
                entry["cuts"],
                machine=where,
                load=float(load.split()[-1]),
                date=time.strftime("%Y-%m-%d"),
                pages=timed.pages,
                stolen=round(timed.stolen, 4),
                share=job["share"],
                library=library(arithmetic),
            )
            append(Path(job["file"]), sample)
            passed = time.time() - job["begun"]
            left = seconds_left(entry["done"], entry["left"], passed)
            print(f"{describe(sample)}; about {left / 60:.0f} min left", flush=True)


def describe(sample: Sample) -> str:
    """Formats a sample for those who wait."""
    point = sample.point
    return (
        f"{time.strftime('%H:%M')} {point.model}, kernels {point.kernels},"
        f" {point.hosts} hosts, m = {point.microbatches}, {point.cut},"
        f" {point.schedule}, round {sample.round}: {sample.seconds:.2f} s"
    )
