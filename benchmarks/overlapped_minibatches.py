"""Training with and without a wait between minibatches, on emulated hosts.

    python -m benchmarks.overlapped_minibatches

For each schedule, runs of several minibatches take turns on the same hosts::

    all wait    each host waits until all hosts have ended the minibatch
    waits       overlap_minibatches=False: each host waits for the losses, which the
                last stage's host sends
    overlaps    overlap_minibatches=True: a host updates its stages, and begins the next
                minibatch, while others are still in this one

All train the same stages with MomentumSGD. No other result is read before the end of a
run. The idle time of a run is the share of its seconds in which a host, in the mean of
all hosts, neither computes an action nor updates.

With ``--clipped 3`` gradients are clipped by the norm of the whole model, and the
clipping fires in 3 minibatches of a run. Their inputs are larger.

The perceptron has stages of equally many layers. For VGG16 and each schedule,
:func:`divisible.best_plan` chooses the stages, from profiles on one of the hosts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.hosts import (
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import (
    Result,
    alternate,
    command,
    machine,
    quiet_barrier,
    ratios,
    wall_seconds,
)
from benchmarks.paper_tables.models import equal_cuts
from benchmarks.paper_tables.points import Point, Scale, from_json, to_json
from benchmarks.paper_tables.profiles import profiles_of
from divisible import Machine, Network, Plan, best_plan
from divisible.schedules.actions import Action
from divisible.schedules.catalogue import CATALOGUE

SCHEDULES = ("1f1b", "zb_h1", "zb_h2", "zb_v")
MODELS = ("mlp", "vgg16")
#: Seconds that the hosts may take for one model on one number of hosts.
DEADLINE = 7200
#: Seconds that a rank may wait for another.
TIMEOUT = 600.0
#: Factor of the inputs in minibatches whose gradients are clipped.
LARGER = 8.0
#: The kinds of runs, and whether their minibatches overlap.
KINDS = {"all wait": False, "waits": False, "overlaps": True}


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


def work(job: dict[str, Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    answer = {}
    for name, file in job["plans"].items():
        runs = {kind: Run(comm, job, Plan.load(file), kind) for kind in KINDS}
        for run_of_kind in runs.values():
            # Makes weights and buffers, and gets their memory from the system.
            run_of_kind.measure()
        answer[name] = alternate(runs, job["rounds"], Run.measure)
        for run_of_kind in runs.values():
            run_of_kind.pipe.close()
    return answer


class Run:
    """A pipeline whose runs of several minibatches are timed; all hosts must make it.

    Args:
        comm (mpi4py.MPI.Comm): Communicator of all hosts.
        job: The point, and the numbers of minibatches.
        plan: The plan.
        kind: One of `KINDS`.
    """

    def __init__(self, comm: Any, job: dict[str, Any], plan: Plan, kind: str) -> None:
        import chainer

        from benchmarks.paper_tables.models import build, minibatch
        from pipeline import Pipeline

        self._comm, self._all_wait = comm, kind == "all wait"
        point, n = from_json(job["point"]), job["minibatches"]
        options = {"timeout": TIMEOUT, "overlap_minibatches": KINDS[kind]}
        self.pipe = Pipeline(build(point), comm, plan=plan, **options)
        self._x, self._t = minibatch(point, point.batch)
        self._optimizer = self.pipe.setup(chainer.optimizers.MomentumSGD(1e-6))
        self._scales = scales_of(n, job["clipped"])
        if job["clipped"]:
            self.pipe.step(self._x, self._t)
            clip(comm, self._optimizer)

    def measure(self) -> tuple[float, float]:
        """Returns the seconds of a minibatch, and the idle share, of all hosts."""
        from benchmarks.common.hosts import PAUSE
        from benchmarks.common.perceptron import step_seconds

        busy = []
        seconds = step_seconds(self._comm, lambda: self._train(busy), PAUSE)
        total = self._comm.allreduce(sum(busy)) / self._comm.size
        return seconds / len(self._scales), 1 - total / seconds

    def _train(self, busy: list[float]) -> None:
        larger = self._x * np.float32(LARGER)
        for scale in self._scales:
            result = self.pipe.step(self._x if scale == 1 else larger, self._t)
            record = self.pipe.internals.record
            operations = zip(record.program.operations, record.durations)
            busy += [took for each, took in operations if isinstance(each, Action)]
            busy.append(wall_seconds(self._optimizer.update))
            if self._all_wait:
                quiet_barrier(self._comm)
        result["loss"]


def scales_of(n: int, n_clipped: int) -> list[float]:
    """Returns the factors of the inputs of minibatches, some of which are clipped.

    Args:
        n: Number of minibatches.
        n_clipped: Number of those whose gradients are larger, evenly among them.

    Example:
        >>> scales_of(4, 2)
        [1.0, 8.0, 1.0, 8.0]
    """
    scales = [1.0] * n
    for i in range(n_clipped):
        scales[(2 * i + 1) * n // (2 * n_clipped)] = LARGER
    return scales


def clip(comm: Any, optimizer: Any) -> None:
    """Adds a clipping of gradients at twice the norm that they have now.

    Args:
        comm (mpi4py.MPI.Comm): Communicator of the ranks.
        optimizer: Optimizer of this rank's stages.
    """
    import chainer

    grads = [p.grad for p in optimizer.target.params() if p.grad is not None]
    norm = math.sqrt(comm.allreduce(sum(float((g * g).sum()) for g in grads)))
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(2 * norm))


def measure(
    arguments: argparse.Namespace, point: Point
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Returns seconds a minibatch and idle shares, by schedule and kind of run.

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
            "clipped": arguments.clipped,
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
    add("--clipped", type=int, default=0, help="minibatches that are clipped")
    add("--width", type=int, default=1024, help="of the perceptron's layers")
    add("--image", type=int, default=32, help="pixels on a side, for VGG16")
    add("--batch", type=int, help="samples of a minibatch, as the paper's unless given")
    add("--rounds", type=int, default=3)
    add("--output", type=Path)
    arguments = parser.parse_args()
    if not 0 <= arguments.clipped <= arguments.minibatches:
        parser.error(
            f"--clipped must be from 0 to --minibatches, {arguments.minibatches}, not"
            f" {arguments.clipped}"
        )
    prepare()
    keep_freed_memory()

    result = Result("overlapped_minibatches", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"hosts with equal shares of {arguments.cpu:g} cores, links of 1gbit; twice as"
        f" many microbatches as hosts, unless given; runs of {arguments.minibatches}"
        f" minibatches, {arguments.clipped} of them clipped; {arguments.rounds} runs of"
        f" each kind in turn; seconds a minibatch and idle time, medians; ratios:"
        f" median (min..max)",
        "",
        f"{'':<21} {'seconds of a minibatch':<26}   {'idle':<26}   {'ratios':<18}",
        f"{'model':<6} {'hosts':>5} {'schedule':<8} {'all wait':>8} {'waits':>8}"
        f" {'overlaps':>8}   {'all wait':>8} {'waits':>8} {'overlaps':>8}"
        f"   {'all wait/overlaps':<18}   waits/overlaps",
    )
    scale = Scale(arguments.width, arguments.image, arguments.batch)
    for model in arguments.models:
        for n in arguments.hosts:
            point = scale.of(model, n, arguments.microbatches or 2 * n)
            for name, found in measure(arguments, point).items():
                result.write(row(model, n, name, found))
    result.save()


def row(
    model: str, n_hosts: int, name: str, found: dict[str, list[tuple[float, float]]]
) -> str:
    """Returns the line of a schedule.

    Args:
        model: Name of the model.
        n_hosts: Number of hosts.
        name: Name of the schedule.
        found: Seconds of a minibatch, and the idle share, of each run by its kind.
    """
    seconds = {kind: [each[0] for each in runs] for kind, runs in found.items()}
    idle = [statistics.median(each[1] for each in found[kind]) for kind in KINDS]
    middle = [statistics.median(seconds[kind]) for kind in KINDS]
    all_wait, waits, overlaps = (seconds[kind] for kind in KINDS)
    return (
        f"{model:<6} {n_hosts:>5} {name:<8} {middle[0]:>8.3f} {middle[1]:>8.3f}"
        f" {middle[2]:>8.3f}   {idle[0]:>8.1%} {idle[1]:>8.1%} {idle[2]:>8.1%}"
        f"   {ratios(all_wait, overlaps):<18}   {ratios(waits, overlaps)}"
    )


if __name__ == "__main__":
    main()
