"""Two pipelines of two stages on four unequal hosts, one of which becomes slow.

::

    abilities, measured -> best_plan(speeds) -> cuts, shares -> training
                                                                   |
                       a host loses half of its CPU -> Rebalance: cuts, shares anew

Three runs of the same training take turns, for each change: with equal cuts and equal
shares, as planned, and as planned with `Rebalance`. In each a host's share is halved
after some minibatches, and given back after others. Losses of all runs must be equal up
to rounding: which samples a replica has changes the order of additions only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.hosts import Hosts, run
from benchmarks.common.results import Result, command, machine, ratios
from benchmarks.rebalancing.changes import (
    DEADLINE,
    SLOW_HOST,
    Course,
    n_iterations,
    watcher,
)

WAYS = ("equal", "planned", "rebalanced")
#: Parts of all cores that the four hosts have; the first two hosts are one pipeline.
PARTS = (0.35, 0.3, 0.2, 0.15)
N_PIPELINE = 2
#: Losses may differ by so much of themselves.
TOLERANCE = 1e-3
# Seconds of computing by which abilities are measured, several periods of a quota.
_SECONDS = 3.0


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Measures abilities, plans, and trains in each way; called on every rank."""
    plan, speeds = _planned(job)
    found: dict[str, Any] = {way: [] for way in WAYS}
    n = 0
    for change in range(job["changes"]):
        for way in WAYS[change % 3 :] + WAYS[: change % 3]:
            found[way].append(_train(job, way, plan, n))
            n += 1
    return {"found": found, "speeds": speeds, "plan": plan.headline}


def _planned(job: dict[str, Any]) -> tuple[Any, list[float]]:
    """Returns the plan of rank 0 for what all ranks can do now, and their speeds."""
    import chainer.functions as F
    from mpi4py import MPI

    from divisible import Machine, best_plan, profile
    from heterogeneous import ability

    comm = MPI.COMM_WORLD
    model, width = build(job), job["width"]
    size = max(1, job["batch"] // (2 * job["microbatches"]))
    x, t = np.ones((size, width), np.float32), np.zeros(size, np.int32)

    def compute() -> None:
        model.cleargrads()
        F.softmax_cross_entropy(model(x), t).backward()

    # The first call compiles kernels, which others may wait for.
    compute()
    comm.Barrier()
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < _SECONDS:
        compute()
        n += 1
    # A quota stops a host for a while: only the sum of many says what it can do.
    abilities = comm.allgather(ability([n], [time.perf_counter() - start]))
    speeds = [each / abilities[0] for each in abilities]
    plan = None
    if comm.rank == 0:
        plan = best_plan(
            profile(model, x, t, F.softmax_cross_entropy),
            Machine(comm.size, speeds=speeds),
            batch=job["batch"],
            microbatches=[job["microbatches"]],
            schedules=["1f1b"],
            recompute=["never"],
            pipeline_ranks=[N_PIPELINE],
            replicas=(2, 2),
        )
    return comm.bcast(plan), speeds


def build(job: dict[str, Any]) -> Any:
    """Returns the model."""
    import chainer.links as L

    from divisible import Divisible

    width = job["width"]
    return Divisible(*[L.Linear(width, width) for _ in range(job["layers"])])


def _train(job: dict[str, Any], way: str, plan: Any, number: int) -> dict[str, Any]:
    """Trains once, on all ranks; says when the host is to become slow."""
    # Here, because the process that starts the hosts must not start MPI.
    import chainer
    from chainer.training import Trainer
    from mpi4py import MPI

    from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
    from divisible import Plan
    from pipeline import Pipeline, PipelineUpdater, Rebalance

    comm, every, folder = MPI.COMM_WORLD, job["every"], Path(job["folder"])
    if way == "equal":
        cuts = Plan.uniform(job["layers"], N_PIPELINE).cuts
        plan = Plan(cuts, job["microbatches"], "1f1b", replicas=2)
    with Grid.of(plan, comm) as grid:
        np.random.seed(0)
        stage = build(job).divide(*plan.range(grid.pipeline.rank))
        pipe = Pipeline(
            stage, grid, n_microbatches=plan.n_microbatches, schedule=plan.schedule
        )
        optimizer = create_multi_node_optimizer(
            chainer.optimizers.Adam(1e-4), grid.data, pipeline=pipe
        ).setup(stage)
        iterator = None
        if pipe.is_first or pipe.is_last:
            random = np.random.RandomState(0)
            x = random.randn(4 * job["batch"], job["width"]).astype(np.float32)
            t = random.randint(0, job["width"], len(x)).astype(np.int32)
            data = chainer.datasets.TupleDataset(x, t)
        if pipe.is_first:
            shares = "measured" if way == "rebalanced" else None
            serial = chainer.iterators.SerialIterator(data, job["batch"], shuffle=False)
            iterator = ReplicaIterator(serial, grid, shares=shares)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        *_, end = n_iterations(every)
        out = str(folder / f"run{number}")
        trainer = Trainer(updater, (end, "iteration"), out=out)
        course = Course(folder, number, every, is_chief=comm.rank == 0)
        trainer.extend(course)
        watch = Rebalance(lambda: build(job), every=every)
        if way == "rebalanced":
            trainer.extend(watch)
        trainer.run()
        found = {
            "before": course.seconds_before,
            "slow": course.seconds_settled,
            "losses": course.losses,
            "moves": len(watch.moves),
            "cuts": list(pipe.cuts),
            "shares": None if iterator is None else iterator.shares,
        }
        pipe.close()
        optimizer.close()
    return found


def largest_difference(runs: Sequence[Sequence[float]]) -> float:
    """Returns by how much losses of runs differ at most, relative to the first one's.

    Example:
        >>> largest_difference([[2.0, 1.0], [2.0, 1.5]])
        0.5
    """
    first, *others = np.array(runs, np.float64)
    return float(max((np.abs(each / first - 1).max() for each in others), default=0.0))


def write_table(result: Result, found: dict[str, list[dict[str, Any]]]) -> None:
    """Writes what the ways take, before the change and when they have settled."""
    for when, name in (("before", "before"), ("slow", f"host {SLOW_HOST} slow")):
        seconds = {way: [each[when] for each in runs] for way, runs in found.items()}
        result.write(f"{name:12} {'step s':>8}  throughput over that of equal parts")
        for way in WAYS:
            each = ratios(seconds["equal"], seconds[way])
            result.write(f"{way:12} {statistics.median(seconds[way]):8.3f}  {each}")
        result.write("")
    gains = [
        planned["slow"] / moved["slow"]
        for planned, moved in zip(found["planned"], found["rebalanced"])
    ]
    n_moves = [each["moves"] for each in found["rebalanced"]]
    shares = found["rebalanced"][-1]["shares"] or []
    differ = largest_difference([e["losses"] for runs in found.values() for e in runs])
    result.write(
        f"with Rebalance {statistics.median(gains):.2f} times the throughput of the"
        f" plan alone while the host is slow; {min(n_moves)} to {max(n_moves)} moves of"
        f" layers, shares at the end {', '.join(f'{share:.3f}' for share in shares)}",
        f"losses differ by {differ:.1e} at most, wanted {TOLERANCE:.0e}:"
        f" {'met' if differ < TOLERANCE else 'MISSED'}",
    )


def measure(arguments: argparse.Namespace) -> None:
    """Measures and writes the result."""
    shares = [arguments.cpu * part for part in PARTS]
    hosts = Hosts(len(PARTS), shares)
    result = Result("rebalancing_replicas", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{arguments.layers} layers of {arguments.width} units, batch"
        f" {arguments.batch} in {arguments.microbatches} microbatches; 2 replicas of"
        f" {N_PIPELINE} stages on hosts with"
        f" {', '.join(f'{share:g}' for share in shares)} of a core and links of"
        f" {hosts.rate} each; host {SLOW_HOST} loses half of it and gets it back; a"
        f" check every {arguments.every} minibatches; {arguments.changes} changes;"
        f" median (min..max)",
        "",
    )
    names = ("layers", "width", "batch", "microbatches", "every", "changes")
    with tempfile.TemporaryDirectory() as folder:
        job = {name: getattr(arguments, name) for name in names}
        answer = run(
            hosts,
            __name__,
            {**job, "folder": folder},
            DEADLINE,
            watcher(Path(folder), shares[SLOW_HOST]),
        )
    speeds = ", ".join(f"{speed:.2f}" for speed in answer["speeds"])
    result.write(f"speeds as measured {speeds}", f"plan: {answer['plan']}", "")
    write_table(result, answer["found"])
    result.save()
