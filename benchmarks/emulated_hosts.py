"""Measured against simulated speed-up on 4 to 32 emulated hosts.

    python -m benchmarks.emulated_hosts

Each host is a network namespace with a CPU quota and a link of 1 Gbit/s, or of another
rate: what counts is how long messages take beside phases. These are real processes over
real TCP, and ratios between runs on the same hosts are honest. All hosts have the same
share of a core, and all shares together are less than the machine has.

The 32-layer perceptron makes steps on all hosts, with the best numbers of microbatches
in the paper. In turn with them, one such host makes steps of the undivided model in
plain Chainer, while the others sleep. The times of F, B, I and W are taken from the
measured timelines; divisible.simulate predicts the step from their means and the time
of a message at the link's rate. The speed-up should reach 90 % of the predicted one.

The layers are wide, because a quota is given out in periods of 10 or 20 ms: an action
must take several of them, also on the smallest share, or their raggedness is measured.

Where hosts cannot be emulated the benchmark reports that; see benchmarks/cluster.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common.hosts import (
    PAUSE,
    Hosts,
    add_hosts_arguments,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios

#: Hosts: the number of microbatches that was best in the paper, and its speed-up.
PAPER = {2: (5, 1.34), 4: (5, 1.93), 8: (20, 2.70), 16: (20, 3.49), 32: (20, 3.72)}
SCHEDULES = ("1f1b", "zb_h1")
TARGET = 0.90
RATE = "1gbit"


def measure(arguments: argparse.Namespace, n_hosts: int) -> dict:
    """Runs the steps on that many hosts and returns what `work` measured."""
    hosts = Hosts(n_hosts, arguments.cpu / n_hosts, arguments.rate)
    job = {
        "microbatches": PAPER[n_hosts][0],
        "width": arguments.width,
        "layers": arguments.layers,
        "batch": arguments.batch,
        "rounds": arguments.rounds,
        "schedules": arguments.schedules,
        "timelines": arguments.timelines,
        "bandwidth": hosts.bandwidth,
    }
    return run(hosts, __spec__.name, job, arguments.timeout)


def work(job: dict) -> dict:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    from benchmarks.common.perceptron import (
        cut,
        measured_costs,
        minibatch,
        mlp,
        step_seconds,
        undivided_step,
    )
    from divisible.schedules.simulator import simulate
    from pipeline import Pipeline

    comm = MPI.COMM_WORLD
    x, t = minibatch(job["width"], job["batch"])
    # One sample for each microbatch.
    small = x[: job["microbatches"]], t[: job["microbatches"]]
    stage = cut(mlp(job["width"], job["layers"]), comm.size, comm.rank)
    pipes = {
        name: Pipeline(stage, comm, n_microbatches=job["microbatches"], schedule=name)
        for name in job["schedules"]
    }
    timelines: dict[str, list] = {name: [] for name in pipes}
    model = mlp(job["width"], job["layers"])
    serial = undivided_step(model, x, t)
    if comm.rank == 0:
        # Makes the weights.
        undivided_step(model, x[:1], t[:1])()

    def seconds_of(name: str) -> float:
        if name == "undivided":
            step = serial if comm.rank == 0 else (lambda: None)
            return step_seconds(comm, step, PAUSE)
        # Hosts that had nothing to do for minutes find their programs' pages gone. How
        # large the messages are is new to the step after it, which costs little beside
        # steps of seconds.
        step_seconds(comm, lambda: pipes[name].step(*small), PAUSE)
        seconds = step_seconds(comm, lambda: pipes[name].step(x, t), PAUSE)
        timelines[name].append(pipes[name].timeline())
        return seconds

    for pipe in pipes.values():
        # Makes weights and buffers, and gets their memory from the system.
        step_seconds(comm, lambda pipe=pipe: pipe.step(x, t), PAUSE)
    names = ["undivided", *pipes]
    seconds = alternate(dict(zip(names, names)), job["rounds"], seconds_of)

    size = job["batch"] // job["microbatches"] * job["width"] * 4
    answer: dict[str, Any] = {"seconds": seconds, "simulated": {}}
    for name, pipe in pipes.items():
        costs = measured_costs(timelines[name], comm.size, size / job["bandwidth"])
        answer["simulated"][name] = simulate(pipe.schedule, costs).makespan
        if job["timelines"] and comm.rank == 0:
            path = Path(job["timelines"], f"{comm.size}-{name}.json")
            timelines[name][-1].save(path)
    return answer


def main() -> None:
    """Runs the table and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    parser.add_argument("--rate", default=RATE, help="of the links")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a row")
    parser.add_argument("--timelines", help="folder to keep the last ones in")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("emulated_hosts", arguments.output)
    result.write(
        command(),
        machine("numpy", "scipy", "chainer", "mpi4py", "mpich"),
        f"{arguments.layers} layers of width {arguments.width}, batch "
        f"{arguments.batch}; hosts with equal shares of {arguments.cpu:g} cores, links "
        f"of {arguments.rate}; {arguments.rounds} rounds; median (min..max)",
        "",
        f"{'hosts':>5} {'micro':>5} {'schedule':<8} {'serial s':>8} {'step s':>7}  "
        f"{'speed-up':<20} {'simulated':>9}  {'measured/simulated':<18} {'paper':>6}",
        f"{'':5} {'batches':>7}",
    )
    worst = 1.0
    for hosts in arguments.hosts:
        answer = measure(arguments, hosts)
        base = answer["seconds"]["undivided"]
        for name in arguments.schedules:
            seconds, simulated = answer["seconds"][name], answer["simulated"][name]
            reached = [simulated / s for s in seconds]
            worst = min(worst, statistics.median(reached))
            result.write(
                f"{hosts:5d} {PAPER[hosts][0]:5d} {name:<8} "
                f"{statistics.median(base):8.2f} {statistics.median(seconds):7.2f} "
                f"{ratios(base, seconds):<21} "
                f"{statistics.median(base) / simulated:9.2f}  "
                f"{statistics.median(reached):4.0%} "
                f"({min(reached):.0%}..{max(reached):.0%})    {PAPER[hosts][1]:6.2f}"
            )
    word = "met" if worst >= TARGET else "MISSED"
    result.write(
        "", f"least measured/simulated {worst:.0%}, target {TARGET:.0%}: {word}"
    )
    result.save()


if __name__ == "__main__":
    main()
