"""Costs of messages that come late, where ranks only wait and where they compute.

    python -m benchmarks.late_messages

Four emulated hosts run a pipeline whose layers sleep instead of computing, so that no
rank is slow because others share its core. Messages are real. Each action takes as long
as planned, or a random part of at most 30 % more or less. In the last rows one link of
four is also four times slower than planned.

For each schedule a rank runs its actions in order, and runs weight gradients while it
waits for messages. The two take turns, with the same random parts. The loss of a
schedule is its time beyond the median step in order and without any disturbance.

Where hosts cannot be emulated the benchmark reports that; see benchmarks/cluster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.common.hosts import PAUSE, Hosts, prepare, run
from benchmarks.common.results import Result, alternate, command, machine, ratios

N_HOSTS = 4
N_MICROBATCHES = 8
N_LAYERS = 4
WIDTH, ROWS = 512, 64
#: Seconds that a layer sleeps in its forward, and in each half of its backward.
SLEEP = 10e-3
RATE, SLOW_RATE = "400mbit", "100mbit"
#: The host whose link is slow.
SLOW_HOST = 1
JITTER = 0.3
#: A disturbance: share by which actions vary, and whether a link is slow.
CONDITIONS = {
    "none": (0.0, False),
    "jitter": (JITTER, False),
    "jitter, slow link": (JITTER, True),
}
WAYS = {"in order": False, "W meanwhile": True}


def work(job: dict) -> dict:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    import chainer
    import chainer.links as L
    import numpy as np
    from mpi4py import MPI

    from benchmarks.common.perceptron import minibatch, step_seconds
    from divisible import Divisible
    from divisible.schedules import Costs, create, list_schedule
    from pipeline import Pipeline

    class Sleep(chainer.FunctionHook):
        """Sleeps in each matrix product, for a random time in each action."""

        name = "Sleep"

        def __init__(self) -> None:
            self._random = np.random.RandomState(0)
            self._n_calls = 0
            self._factor = 1.0

        def begin(self, seed: int) -> None:
            """Begins a step."""
            self._random, self._n_calls = np.random.RandomState(seed), 0

        def _sleep(self, function: Any) -> None:
            if isinstance(function, chainer.functions.connection.linear.LinearFunction):
                if self._n_calls % N_LAYERS == 0:
                    self._factor = 1 + job["jitter"] * self._random.uniform(-1, 1)
                self._n_calls += 1
                time.sleep(SLEEP * self._factor)

        def forward_postprocess(self, function: Any, in_data: tuple) -> None:
            """Sleeps for a forward."""
            self._sleep(function)

        def backward_postprocess(
            self, function: Any, in_data: tuple, out_grad: tuple
        ) -> None:
            """Sleeps for a half of a backward."""
            self._sleep(function)

    comm = MPI.COMM_WORLD
    x, t = minibatch(WIDTH, ROWS * N_MICROBATCHES)
    stage = Divisible(
        *[L.Linear(WIDTH, WIDTH) for _ in range(N_LAYERS * N_HOSTS)]
    ).divide(N_LAYERS * comm.rank, N_LAYERS * (comm.rank + 1))
    bandwidth = Hosts(1, 1.0, RATE).bandwidth
    phase = N_LAYERS * SLEEP
    costs = Costs(
        forward=[phase] * N_HOSTS,
        backward_input=[phase] * N_HOSTS,
        backward_weight=[phase] * N_HOSTS,
        transfer=[WIDTH * ROWS * 4 / bandwidth] * (N_HOSTS - 1),
    )
    schedules = {
        "zb_h1": create("zb_h1", N_HOSTS, N_MICROBATCHES),
        "zb_h2": create("zb_h2", N_HOSTS, N_MICROBATCHES),
        "list": list_schedule(costs, N_MICROBATCHES),
    }
    sleep = Sleep()
    pipes = {}
    for name, schedule in schedules.items():
        for way, fills_waits in WAYS.items():
            pipe = Pipeline(
                stage, comm, schedule=schedule, n_microbatches=N_MICROBATCHES
            )
            pipe.internals.step.runner.fills_waits &= fills_waits
            pipes[f"{name} {way}"] = pipe
    n_steps = dict.fromkeys(pipes, 0)

    def seconds_of(name: str) -> float:
        # Both ways of a schedule have the same draws in the same round.
        n_steps[name] += 1
        sleep.begin(1000 * n_steps[name] + comm.rank)
        return step_seconds(comm, lambda: pipes[name].step(x, t), PAUSE)

    with sleep:
        for name in pipes:
            # Agrees on shapes, and learns how long functions take.
            for _ in range(2):
                seconds_of(name)
        n_steps.update(dict.fromkeys(pipes, 0))
        seconds = alternate(dict(zip(pipes, pipes)), job["rounds"], seconds_of)
    return {"seconds": seconds}


def slow_down(hosts: Cluster) -> None:
    """Slows the link of one host down."""
    hosts.set(SLOW_HOST, rate=SLOW_RATE)


def main() -> None:
    """Runs the table and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", type=float, default=1.8, help="of all hosts, in cores")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=600, help="seconds a row")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("late_messages", arguments.output)
    result.write(
        command(),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{N_HOSTS} hosts, {N_MICROBATCHES} microbatches; F, I and W of"
        f" {1e3 * N_LAYERS * SLEEP:g} ms, links of {RATE}, the slow one {SLOW_RATE};"
        f" {arguments.rounds} rounds; median (min..max)",
        "",
        f"{'disturbance':<18} {'schedule':<8} {'in order s':>10} {'W meanwhile s':>13}"
        f"  {'ratio':<18} {'loss in order':>13} {'W meanwhile':>11} {'of it':>6}",
    )
    undisturbed: dict[str, float] = {}
    for condition, (jitter, is_slow) in CONDITIONS.items():
        hosts = Hosts(N_HOSTS, arguments.cpu / N_HOSTS, RATE)
        job = {"jitter": jitter, "rounds": arguments.rounds}
        answer = run(
            hosts,
            __spec__.name,
            job,
            arguments.timeout,
            slow_down if is_slow else None,
        )
        for line in _rows(condition, answer["seconds"], undisturbed):
            result.write(line)
    result.save()


def _rows(
    condition: str, seconds: dict[str, list[float]], undisturbed: dict[str, float]
) -> list[str]:
    """Returns a row for each schedule, and records steps without disturbance."""
    lines = []
    for name in dict.fromkeys(key.split()[0] for key in seconds):
        of = partial("{} {}".format, name)
        ours, theirs = seconds[of("W meanwhile")], seconds[of("in order")]
        base = undisturbed.setdefault(name, statistics.median(theirs))
        losses = [statistics.mean(each) / base - 1 for each in (theirs, ours)]
        share = f"{losses[1] / losses[0]:6.2f}" if condition != "none" else ""
        lines.append(
            f"{condition:<18} {name:<8} {statistics.median(theirs):10.3f}"
            f" {statistics.median(ours):13.3f}  {ratios(ours, theirs):<18}"
            f" {losses[0]:13.1%} {losses[1]:11.1%} {share}".rstrip()
        )
    return lines


if __name__ == "__main__":
    main()
