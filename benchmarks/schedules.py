"""Time and memory of all schedules of the catalogue on emulated hosts.

    python -m benchmarks.schedules

A perceptron makes steps under each schedule in turn on the same hosts. Schedules with
two stages on a rank have stages of half as many layers. From the measured timelines of
a schedule come the times of F, B, I and W, from which divisible.simulate predicts the
step. A message takes as long as its bytes at the link's rate.

The memory is counted in three ways. *Held* is the largest number of microbatches that a
rank holds, in flight or with a pending W, in all of its layers. It follows from the
schedule alone. *Predicted* are the bytes of the fullest host, from the arrays that a
microbatch holds in each stage until its backward, and until its W. *Measured* is the
peak of live arrays there, without the gradients of parameters (tracemalloc, which NumPy
reports to). Arrays of a single action come on top of what is predicted.

V-Half and V-Min should hold no more microbatches than their paper says, take no longer
than 1F1B, and 1.1 times as long.
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
from divisible.schedules.catalogue import CATALOGUE

RATE = "1gbit"
#: The schedule that the others are compared with.
BASE = "1f1b"
#: Schedules with targets: the step as a part of the base's, and the divisor and the
#: summand of the held microbatches.
TARGETS = {"v_half": (1.0, 2, 2), "v_min": (1.1, 3, 4)}
#: Seconds that the run may take.
DEADLINE = 3600


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    return OnHosts(MPI.COMM_WORLD, job).answer()


class OnHosts:
    """A perceptron on hosts, one pipeline for each schedule.

    Args:
        comm: A rank on each host.
        job: The sizes, the names of the schedules, and the rate of the links.
    """

    def __init__(self, comm: Any, job: dict[str, Any]) -> None:
        from benchmarks.common.perceptron import minibatch

        self._comm, self._job = comm, job
        self._data = minibatch(job["width"], job["batch"])
        self._samples = job["batch"] // job["microbatches"]
        # Schedules with the same stages on a rank share them, and their weights.
        self._stages: dict[tuple[int, ...], dict[int, Any]] = {}
        self._pipes = {name: self._pipeline(name) for name in job["schedules"]}
        self._timelines: dict[str, list] = {name: [] for name in self._pipes}

    def answer(self) -> dict[str, Any]:
        """Returns the measured and predicted results, by name of the schedule."""
        for name in self._pipes:
            # Makes weights and buffers, and gets their memory from the system.
            self._step(name)
        for timelines in self._timelines.values():
            timelines.clear()
        names = [*self._pipes]
        seconds = alternate(dict(zip(names, names)), self._job["rounds"], self._step)
        return {
            name: {
                "seconds": seconds[name],
                "held": max(pipe.schedule.validate().held),
                **self._predicted(name),
                "peak": self._peak(name),
            }
            for name, pipe in self._pipes.items()
        }

    def _own_stages(self, name: str) -> dict[int, Any]:
        """Returns this rank's stages for a schedule, by number."""
        from benchmarks.common.perceptron import cut, mlp

        entry, comm = CATALOGUE[name], self._comm
        n_stages = entry.stages_per_rank * comm.size
        ranks = entry.placement.ranks(comm.size, n_stages)
        if ranks not in self._stages:
            model = mlp(self._job["width"], self._job["layers"])
            self._stages[ranks] = {
                stage: cut(model, n_stages, stage)
                for stage, rank in enumerate(ranks)
                if rank == comm.rank
            }
        return self._stages[ranks]

    def _pipeline(self, name: str) -> Any:
        from pipeline import Pipeline

        return Pipeline(
            [*self._own_stages(name).values()],
            self._comm,
            n_microbatches=self._job["microbatches"],
            schedule=name,
            accfun=None,
        )

    def _step(self, name: str) -> float:
        from benchmarks.common.perceptron import step_seconds

        pipe = self._pipes[name]
        seconds = step_seconds(self._comm, lambda: pipe.step(*self._data), PAUSE)
        self._timelines[name].append(pipe.timeline())
        return seconds

    def _predicted(self, name: str) -> dict[str, float]:
        """Returns seconds of a step and bytes of the fullest host by simulation."""
        from dataclasses import replace

        from benchmarks.common.perceptron import measured_costs
        from benchmarks.memory import MIB, held_bytes
        from divisible.schedules.simulator import simulate

        width, schedule = self._job["width"], self._pipes[name].schedule
        message = self._samples * width * 4 / self._job["bandwidth"]
        costs = measured_costs(self._timelines[name], schedule.n_stages, message)
        mine = {
            number: held_bytes(stage, number == 0, width, self._samples)
            for number, stage in self._own_stages(name).items()
        }
        every: dict[int, tuple[int, int]] = {}
        for theirs in self._comm.allgather(mine):
            every.update(theirs)
        activation, pending = zip(*(every[stage] for stage in sorted(every)))
        costs = replace(costs, activation_bytes=activation, pending_bytes=pending)
        timeline = simulate(schedule, costs)
        return {
            "simulated": timeline.makespan,
            "predicted": float(max(timeline.peak_memory)) / MIB,
        }

    def _peak(self, name: str) -> float:
        """Returns the MiB of live arrays of the fullest host."""
        from benchmarks.memory import MIB, live_arrays

        gradients = sum(
            param.array.nbytes
            for stage in self._own_stages(name).values()
            for param in stage.params()
        )
        peak = live_arrays(lambda: self._pipeline(name), self._data)
        return max(self._comm.allgather(peak - gradients / MIB))


def verdicts(found: dict[str, Any], n_hosts: int) -> list[str]:
    """Returns a line for each schedule with a target.

    Args:
        found: The results, by name of the schedule.
        n_hosts: Number of hosts, which is what 1F1B holds.

    Example:
        >>> base = {"seconds": [2.0], "held": 4.0}
        >>> verdicts({"1f1b": base, "v_min": {"seconds": [2.1], "held": 2.0}}, 4)
        ['v_min: 1.05 times as long as 1f1b, wanted 1.1; holds 2, wanted 2: met']
    """
    lines = []
    for name, (ratio, divisor, more) in TARGETS.items():
        if name not in found or BASE not in found:
            continue
        pairs = zip(found[name]["seconds"], found[BASE]["seconds"])
        took = statistics.median(mine / base for mine, base in pairs)
        held, most = found[name]["held"], (n_hosts + more) // divisor
        word = "met" if took <= ratio and held <= most else "MISSED"
        lines.append(
            f"{name}: {took:.2f} times as long as {BASE}, wanted {ratio:g}; holds"
            f" {held:g}, wanted {most}: {word}"
        )
    return lines


def main() -> None:
    """Runs all schedules and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--hosts", type=int, default=4)
    add("--schedules", nargs="+", default=list(CATALOGUE), choices=CATALOGUE)
    add("--microbatches", type=int, default=8)
    add("--rate", default=RATE, help="of the links")
    add("--width", type=int, default=1024)
    add("--layers", type=int, default=32)
    add("--batch", type=int, default=2048)
    add("--rounds", type=int, default=3)
    add("--output", type=Path)
    arguments = parser.parse_args()
    prepare()

    result = Result("schedules", arguments.output)
    result.write(
        command(),
        machine("numpy", "scipy", "chainer", "mpi4py", "mpich"),
        f"{arguments.layers} layers of width {arguments.width}, batch"
        f" {arguments.batch} in {arguments.microbatches} microbatches;"
        f" {arguments.hosts} hosts with equal shares of {arguments.cpu:g} cores, links"
        f" of {arguments.rate}; {arguments.rounds} rounds; median (min..max)",
        "",
    )
    hosts = Hosts(arguments.hosts, arguments.cpu / arguments.hosts, arguments.rate)
    names = ("schedules", "microbatches", "width", "layers", "batch", "rounds")
    job = {name: getattr(arguments, name) for name in names}
    job["bandwidth"] = hosts.bandwidth
    found = run(hosts, __spec__.name, job, DEADLINE)
    base = found.get(BASE, next(iter(found.values())))
    result.write(
        f"{'schedule':<14} {'step s':>6}  {'of ' + BASE:<18} {'simulated':>9} "
        f" {'held':>4}  {'predicted':>9} {'measured MiB':>12}"
    )
    for name, one in found.items():
        result.write(
            f"{name:<14} {statistics.median(one['seconds']):6.2f} "
            f" {ratios(one['seconds'], base['seconds']):<18}"
            f" {one['simulated'] / base['simulated']:9.2f}  {one['held']:4g} "
            f" {one['predicted']:9.1f} {one['peak']:12.1f}"
        )
    result.write("", *verdicts(found, arguments.hosts))
    result.save()


if __name__ == "__main__":
    main()
