"""Plans, and steps of pipelines with narrow messages, on emulated hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.common.hosts import PAUSE
from benchmarks.common.perceptron import minibatch, mlp, step_seconds
from benchmarks.common.probes import link
from benchmarks.common.results import alternate
from benchmarks.message_dtypes.names import DTYPES, WHOLE
from divisible import (
    Divisible,
    Machine,
    Network,
    Plan,
    best_plan,
    deferred_init,
    profile,
)
from divisible.planning.message_plan import MessagePlan, as_plans, message_lines
from pipeline import Pipeline

#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (2, 1)
SCHEDULE = "1f1b"


def work(job: dict[str, Any]) -> Any:
    """Runs on each host; the answer of the first one counts."""
    if job["task"] == "link":
        found = link(MPI.COMM_WORLD)
        return {"bandwidth": found.bandwidth, "latency": found.latency}
    return _plans(job) if job["task"] == "plan" else _seconds(job)


def _model(job: dict[str, Any]) -> tuple[Divisible, np.ndarray, np.ndarray]:
    """Returns a model and a minibatch for it."""
    if job["model"] == "perceptron":
        return mlp(job["width"], job["layers"]), *minibatch(job["width"], job["batch"])
    from examples.train.models.vgg16 import VGG16

    with deferred_init(0):
        model = VGG16(image_size=job["size"], dropout=0.0)
    x, t = minibatch(3 * job["size"] ** 2, job["batch"])
    return model, x.reshape(-1, 3, job["size"], job["size"]), t


def _plans(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the cuts that are best for float32, and the dtypes that suit them."""
    model, x, t = _model(job)
    size = job["batch"] // job["microbatches"]
    profiles = [profile(model, x[: n * size], t[: n * size]) for n in PROFILED]

    def planned(bandwidth: float, dtypes: tuple[str, ...]) -> Plan:
        machine = Machine(
            job["n_ranks"], network=Network(bandwidth), speeds=job["speed"]
        )
        return best_plan(
            profiles,
            machine,
            batch=job["batch"],
            microbatches=[job["microbatches"]],
            schedules=[SCHEDULE],
            recompute=["never"],
            pipeline_ranks=[job["n_ranks"]],
            message_dtypes=dtypes,
        )

    found = {}
    for name, bandwidth in job["bandwidths"].items():
        narrow = planned(bandwidth, DTYPES)
        found[name] = {
            "cuts": planned(bandwidth, ()).cuts,
            "planned_cuts": narrow.cuts,
            "pairs": [each.pair for each in narrow.messages],
            "lines": message_lines(narrow.messages),
        }
    return found


def _seconds(job: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the seconds of steps with each dtype."""
    comm = MPI.COMM_WORLD
    n_edges = comm.size - 1
    ways = {
        name: (job["cuts"], as_plans([(name, name)] * n_edges))
        for name in (WHOLE, *DTYPES)
    }
    pairs = [MessagePlan(*pair) for pair in job["pairs"]]
    ways["planned"] = job["planned_cuts"], pairs
    pipes, x, t = {}, None, None
    for name, (cuts, messages) in ways.items():
        model, x, t = _model(job)
        plan = Plan(cuts, job["microbatches"], SCHEDULE, messages=messages)
        pipes[name] = Pipeline(model, comm, plan=plan, timeout=600)

    def seconds_of(name: str) -> float:
        return step_seconds(comm, lambda: pipes[name].step(x, t), PAUSE)

    for name in pipes:
        # Makes weights and buffers, and compiles the loops that code.
        seconds_of(name)
    return alternate(dict(zip(pipes, pipes)), job["rounds"], seconds_of)
