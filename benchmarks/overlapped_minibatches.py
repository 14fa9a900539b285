"""Training with and without a wait between minibatches, on emulated hosts.

    python -m benchmarks.overlapped_minibatches

With ``overlap_minibatches=True`` a host updates its stages, and begins the next
minibatch, while others are still in this one. With ``False`` it waits for them. For
each schedule, runs of several minibatches of both kinds take turns on the same hosts.
Both train the same stages with MomentumSGD, and no result is read before the end of a
run.

The perceptron has stages of equally many layers. For VGG16 and each schedule,
:func:`divisible.best_plan` chooses the stages, from profiles on one of the hosts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import (
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.paper_tables.models import equal_cuts
from benchmarks.paper_tables.points import Point, Scale, from_json, to_json
from benchmarks.paper_tables.profiles import profiles_of
from divisible import Machine, Network, Plan, best_plan
from divisible.schedules.catalogue import CATALOGUE

SCHEDULES = ("1f1b", "zb_h1", "zb_h2", "zb_v")
MODELS = ("mlp", "vgg16")
#: Seconds that the hosts may take for one model on one number of hosts.
DEADLINE = 7200
#: Seconds that a rank may wait for another.
TIMEOUT = 600.0


def plans_of(point: Point, schedules: Sequence[str], cpu: float) -> dict[str, Plan]:
    """Returns the plan for each schedule.

    Args:
        point: Model, minibatch and hosts.
        schedules: Names of the schedules.
        cpu: Share of all hosts together, in cores.
    """
    plans = {}
    if point.model == "mlp":
        for name in schedules:
            per_rank = CATALOGUE[name].stages_per_rank
            cuts = equal_cuts(replace(point, hosts=per_rank * point.hosts))
            options = {"schedule": name, "stages_per_rank": per_rank}
            plans[name] = Plan(cuts, n_microbatches=point.microbatches, **options)
        return plans
    hosts = point.on(cpu)
    with tempfile.TemporaryDirectory() as folder:
        profiles = profiles_of(Path(folder), point)
    network = Network(bandwidth=hosts.bandwidth)
    for name in schedules:
        plans[name] = best_plan(
            profiles,
            Machine(hosts.n, network=network, speeds=hosts.share),
            batch=point.batch,
            microbatches=[point.microbatches],
            schedules=[name],
            recompute=["never"],
            pipeline_ranks=[hosts.n],
        )
    return plans


def work(job: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    import chainer
    from mpi4py import MPI

    from benchmarks.common.hosts import PAUSE
    from benchmarks.common.perceptron import step_seconds
    from benchmarks.paper_tables.models import build, minibatch
    from pipeline import Pipeline

    comm, point = MPI.COMM_WORLD, from_json(job["point"])
    x, t = minibatch(point, point.batch)
    answer = {}
    for name, file in job["plans"].items():
        options = {"timeout": TIMEOUT, "overlap_minibatches": True}
        late = Pipeline(build(point), comm, plan=Plan.load(file), **options)
        options = {"timeout": TIMEOUT, "overlap_minibatches": False}
        stages, n = list(late.stages.values()), late.schedule.n_microbatches
        waiting = Pipeline(stages, comm, n_microbatches=n, schedule=name, **options)
        optimizer = late.setup(chainer.optimizers.MomentumSGD(1e-6))

        def seconds_of(pipe: Pipeline, optimizer: Any = optimizer) -> float:
            def train() -> None:
                for _ in range(job["minibatches"]):
                    result = pipe.step(x, t)
                    optimizer.update()
                result["loss"]

            return step_seconds(comm, train, PAUSE) / job["minibatches"]

        pipes = {"overlap": late, "wait": waiting}
        for pipe in pipes.values():
            # Makes weights and buffers, and gets their memory from the system.
            seconds_of(pipe)
        answer[name] = alternate(pipes, job["rounds"], seconds_of)
        for pipe in pipes.values():
            pipe.close()
    return answer


def measure(
    arguments: argparse.Namespace, point: Point
) -> dict[str, dict[str, list[float]]]:
    """Runs the plans of all schedules; returns seconds a minibatch, with and without.

    Args:
        arguments: Arguments of the command.
        point: Model, minibatch and hosts.
    """
    plans = plans_of(point, arguments.schedules, arguments.cpu)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder, f"{name}.json")) for name in plans}
        for name, plan in plans.items():
            plan.save(files[name])
        job = {
            "point": to_json(point),
            "plans": files,
            "rounds": arguments.rounds,
            "minibatches": arguments.minibatches,
        }
        return run(point.on(arguments.cpu), __spec__.name, job, DEADLINE)


def main() -> None:
    """Runs the table and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--hosts", type=int, nargs="+", default=[2, 4, 8])
    add("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    add("--microbatches", type=int, help="twice the hosts unless given")
    add("--minibatches", type=int, default=10, help="of a run")
    add("--width", type=int, default=1024, help="of the perceptron's layers")
    add("--image", type=int, default=32, help="pixels on a side, for VGG16")
    add("--batch", type=int, help="samples of a minibatch, as the paper's unless given")
    add("--rounds", type=int, default=3)
    add("--output", type=Path)
    arguments = parser.parse_args()
    prepare()
    keep_freed_memory()

    result = Result("overlapped_minibatches", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"hosts with equal shares of {arguments.cpu:g} cores, links of 1gbit; runs of"
        f" {arguments.minibatches} minibatches, {arguments.rounds} of each kind in"
        f" turn; seconds a minibatch; median (min..max)",
        "",
        f"{'model':<6} {'hosts':>5} {'microbatches':>12} {'schedule':<8} {'waits':>7}"
        f" {'overlaps':>8}  waits/overlaps",
    )
    scale = Scale(arguments.width, arguments.image, arguments.batch)
    for model in arguments.models:
        for n in arguments.hosts:
            point = scale.of(model, n, arguments.microbatches or 2 * n)
            for name, seconds in measure(arguments, point).items():
                waits, overlaps = seconds["wait"], seconds["overlap"]
                result.write(
                    f"{model:<6} {n:>5} {point.microbatches:>12} {name:<8}"
                    f" {statistics.median(waits):>7.3f}"
                    f" {statistics.median(overlaps):>8.3f}  {ratios(waits, overlaps)}"
                )
    result.save()


if __name__ == "__main__":
    main()
