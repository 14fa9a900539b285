"""Steps of several plans of a model, and of the undivided one, in turn on the hosts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.hosts import Hosts, run
from benchmarks.common.results import alternate
from benchmarks.paper_tables.points import Point, from_json, to_json
from divisible.schedules.actions import KINDS
from divisible.schedules.timeline import Timeline

UNDIVIDED = "undivided"
#: Seconds that a rank may wait for another.
TIMEOUT = 600.0


class Turns(NamedTuple):
    """The times of plans that took turns.

    Attributes:
        seconds: Seconds of each step, by the name of the plan; `UNDIVIDED` is one of
            them.
        stages: Seconds that each stage computed, for each step of a plan.
    """

    seconds: dict[str, list[float]]
    stages: dict[str, list[list[float]]]


def in_turn(
    hosts: Hosts,
    point: Point,
    plans: dict[str, Any],
    rounds: int,
    deadline: float,
) -> Turns:
    """Measures plans in turn, each on the first hosts, as many as it has ranks.

    Args:
        hosts: All hosts.
        point: Model and minibatch.
        plans: Plans by name, with their number of microbatches and schedule.
        rounds: Steps of each plan.
        deadline: Seconds that the run may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, f"{i}.json")) for i, name in enumerate(plans)}
        for name, plan in plans.items():
            plan.save(files[name])
        job = {"point": to_json(point), "plans": files, "rounds": rounds}
        return Turns(**run(hosts, __name__, job, deadline))


def stage_seconds(timeline: Timeline) -> list[float]:
    """Returns the seconds that each stage computed; a rank may have several."""
    computes = timeline.category < len(KINDS)
    seconds = (timeline.end - timeline.start)[computes]
    return np.bincount(timeline.stage[computes], seconds).tolist()


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    from benchmarks.common.hosts import PAUSE
    from benchmarks.common.perceptron import step_seconds, undivided_step
    from benchmarks.paper_tables.models import build, minibatch
    from divisible import Plan
    from pipeline import Pipeline

    comm, point = MPI.COMM_WORLD, from_json(job["point"])
    x, t = minibatch(point, point.batch)
    # Steps of this rank, which do nothing where others work for it.
    steps = dict.fromkeys(job["plans"], lambda: None)
    pipes = {}
    for name, file in job["plans"].items():
        plan = Plan.load(file)
        takes_part = comm.rank < plan.n_ranks
        group = comm.Split(0 if takes_part else MPI.UNDEFINED, comm.rank)
        if takes_part:
            pipe = Pipeline(build(point), group, plan=plan, timeout=TIMEOUT)
            pipes[name] = pipe
            steps[name] = lambda pipe=pipe: pipe.step(x, t)
    steps[UNDIVIDED] = lambda: None
    if comm.rank == 0:
        steps[UNDIVIDED] = undivided_step(build(point).divide(None, None), x, t)
    stages: dict[str, list[list[float]]] = {name: [] for name in job["plans"]}

    def seconds(name: str) -> float:
        found = step_seconds(comm, steps[name], PAUSE)
        if name in pipes:
            timeline = pipes[name].timeline()
            if comm.rank == 0:
                stages[name].append(stage_seconds(timeline))
        return found

    # The first steps get their memory, and learn how large the messages are.
    names = {name: name for name in steps}
    alternate(names, 2, seconds)
    for each in stages.values():
        each.clear()

    def progress(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    found = alternate(names, job["rounds"], seconds, progress)
    return {"seconds": found, "stages": stages}
