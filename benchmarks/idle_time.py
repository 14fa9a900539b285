"""Idle time of hosts in runs of minibatches, where all actions take equally long.

    python -m benchmarks.idle_time

Layers sleep instead of computing, so that F, I and W take the same time on each of four
emulated hosts, and no host is slow because others share its core. Messages, gradients
and updates are real. The time of a host counts from the start of its first action to
the end of its last update. Its idle time is the part in which it runs no action and no
update. A row has the mean of all hosts.

Columns::

    simulated   the prediction of divisible.schedules.simulate
    waits       overlap_minibatches=False: each host waits for the losses
    overlaps    overlap_minibatches=True

With clipping, the norm of the whole model decides about each update, and three of the
minibatches are clipped. Forwards that ran with the wrong parameters run again:
``repeated`` is their share of the hosts' time. The simulation has no clipping.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import PAUSE, Hosts, prepare, run
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.overlapped_minibatches import clip, scales_of
from divisible.schedules import Costs, create
from divisible.schedules.catalogue import CATALOGUE
from divisible.schedules.simulator import simulate

N_HOSTS = 4
N_MICROBATCHES = 8
WIDTH, ROWS = 256, 32
SCHEDULES = ("1f1b", "zb_h1", "zb_h2", "zb_v")
#: The kinds of runs, and whether their minibatches overlap.
KINDS = {"waits": False, "overlaps": True}
#: Seconds that a rank may wait for another, and that all runs may take.
TIMEOUT, DEADLINE = 60.0, 3600


def work(job: dict[str, Any]) -> dict[str, dict[str, list[list[float]]]]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    answer = {}
    for name in job["schedules"]:
        runs = {kind: Run(MPI.COMM_WORLD, job, name, kind) for kind in KINDS}
        for each in runs.values():
            each.prepare()
        answer[name] = alternate(runs, job["rounds"], Run.measure)
        for each in runs.values():
            each.pipe.close()
    return answer


class Run:
    """A pipeline of sleeping layers; all hosts must make it.

    Args:
        comm (mpi4py.MPI.Comm): Communicator of all hosts.
        job: The numbers of minibatches and the seconds of an action.
        name: Name of the schedule.
        kind: One of `KINDS`.
    """

    def __init__(self, comm: Any, job: dict[str, Any], name: str, kind: str) -> None:
        import chainer
        import chainer.links as L

        from benchmarks.common.perceptron import minibatch
        from divisible import Divisible, Plan
        from pipeline import Pipeline

        self._comm = comm
        chunks = CATALOGUE[name].stages_per_rank
        self._sleep = _sleep(job["seconds"] / chunks)
        n_stages = chunks * comm.size
        # Parameters ahead of the first product: it computes a gradient of its input.
        model = Divisible(
            L.Bias(1, (WIDTH,)), *[L.Linear(WIDTH, WIDTH) for _ in range(n_stages)]
        )
        schedule = {"schedule": name, "stages_per_rank": chunks}
        cuts = [0, *range(2, n_stages + 2)]
        plan = Plan(cuts, n_microbatches=N_MICROBATCHES, **schedule)
        options = {"overlap_minibatches": KINDS[kind], "timeout": TIMEOUT}
        self.pipe = Pipeline(model, comm, plan=plan, **options)
        self._x, self._t = minibatch(WIDTH, ROWS * N_MICROBATCHES)
        self._optimizer = self.pipe.setup(chainer.optimizers.MomentumSGD(1e-6))
        self._scales = scales_of(job["minibatches"], job["clipped"])
        if job["clipped"]:
            self.pipe.step(self._x, self._t)
            clip(comm, self._optimizer)
        self._needed = 3 * chunks * N_MICROBATCHES * job["minibatches"]

    def prepare(self) -> None:
        """Runs two minibatches: makes buffers, and agrees on shapes."""
        for _ in range(2):
            self.pipe.step(self._x, self._t)["loss"]
            self._optimizer.update()

    def measure(self) -> tuple[float, float, float]:
        """Returns seconds of a minibatch, and the shares that are idle and repeated."""
        from benchmarks.common.perceptron import step_seconds

        self._sleep.n_calls = 0
        found = []
        with self._sleep:
            seconds = step_seconds(
                self._comm, lambda: found.append(self._train()), PAUSE
            )
        ((busy, span),) = found
        repeated = (self._sleep.n_calls - self._needed) * self._sleep.seconds
        shares = [1 - (busy + repeated) / span, repeated / span]
        idle, repeated = (
            self._comm.allreduce(each) / self._comm.size for each in shares
        )
        return seconds / len(self._scales), idle, repeated

    def _train(self) -> tuple[float, float]:
        """Returns seconds in actions and updates, and from the first to the last."""
        from divisible.schedules.actions import Action

        busy, starts = 0.0, []
        for scale in self._scales:
            result = self.pipe.step(self._x * self._x.dtype.type(scale), self._t)
            record = self.pipe.internals.record
            for i, each in enumerate(record.program.operations):
                if isinstance(each, Action):
                    starts.append(record.times[2 * i])
                    busy += record.times[2 * i + 1] - record.times[2 * i]
            begin = time.perf_counter()
            self._optimizer.update()
            end = time.perf_counter()
            busy += end - begin
        result["loss"]
        return busy, end - starts[0]


def _sleep(seconds: float) -> Any:
    """Returns a hook that sleeps in a product, and in each half of its backward."""
    from chainer import FunctionHook
    from chainer.functions.connection.linear import LinearFunction

    class Sleep(FunctionHook):
        name = "Sleep"

        def __init__(self) -> None:
            self.seconds, self.n_calls = seconds, 0

        def _sleep(self, function: Any, *arrays: Any) -> None:
            if isinstance(function, LinearFunction):
                self.n_calls += 1
                time.sleep(seconds)

        forward_postprocess = backward_postprocess = _sleep

    return Sleep()


def simulated(name: str, n_minibatches: int) -> dict[str, float]:
    """Returns the idle share that the simulator predicts, by kind of run.

    Args:
        name: Name of the schedule.
        n_minibatches: Number of minibatches of a run.
    """
    chunks = CATALOGUE[name].stages_per_rank
    schedule = create(name, chunks * N_HOSTS, N_MICROBATCHES)
    costs = Costs(1 / chunks, 1 / chunks, 1 / chunks)
    busy = 3 * N_MICROBATCHES * n_minibatches
    one = simulate(schedule, costs)
    found = {}
    for kind, n in {"waits": 1, "overlaps": n_minibatches}.items():
        timeline = one if n == 1 else simulate(schedule, costs, n_minibatches=n)
        spans = []
        for rank in range(N_HOSTS):
            of_rank = timeline.rank == rank
            span = timeline.end[of_rank].max() - timeline.start[of_rank].min()
            spans.append((n_minibatches // n - 1) * timeline.makespan + span)
        found[kind] = 1 - busy / statistics.mean(spans)
    return found


def main() -> None:
    """Runs the table and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--cpu", type=float, default=1.8, help="of all hosts, in cores")
    add("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    add("--seconds", type=float, default=0.04, help="of F, I and W on a host")
    add("--minibatches", type=int, default=20, help="of a run")
    add("--clipped", type=int, nargs="+", default=[0, 3], help="minibatches of a run")
    add("--rounds", type=int, default=2)
    add("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("idle_time", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{N_HOSTS} hosts, {N_MICROBATCHES} microbatches; F, I and W of"
        f" {1e3 * arguments.seconds:g} ms; runs of {arguments.minibatches} minibatches;"
        f" {arguments.rounds} runs of each kind in turn, medians",
        "",
        f"{'':<18} {'simulated idle':<17}   {'measured idle':<17}   {'':<8}   seconds",
        f"{'schedule':<9} {'clipped':>8} {'waits':>8} {'overlaps':>8}   {'waits':>8}"
        f" {'overlaps':>8}   {'repeated':>8}   {'overlaps':>8}  waits/overlaps",
    )
    hosts = Hosts(N_HOSTS, arguments.cpu / N_HOSTS)
    for clipped in arguments.clipped:
        job = {**vars(arguments), "clipped": clipped, "output": None}
        found = run(hosts, __spec__.name, job, DEADLINE)
        for name, kinds in found.items():
            predicted = simulated(name, arguments.minibatches)
            columns = {kind: list(zip(*runs)) for kind, runs in kinds.items()}
            middle = {
                kind: [statistics.median(each) for each in each_column]
                for kind, each_column in columns.items()
            }
            result.write(
                f"{name:<9} {clipped:>8}"
                f" {predicted['waits']:>8.1%} {predicted['overlaps']:>8.1%}"
                f"   {middle['waits'][1]:>8.1%} {middle['overlaps'][1]:>8.1%}"
                f"   {middle['overlaps'][2]:>8.1%}   {middle['overlaps'][0]:>8.3f}"
                f"  {ratios(columns['waits'][0], columns['overlaps'][0])}"
            )
    result.save()


if __name__ == "__main__":
    main()
