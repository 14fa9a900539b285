"""Hold, recompute, write to disk or stream: simulated and measured on emulated hosts.

    python -m benchmarks.held_activations

First two models, a perceptron and a stack of convolutions, make steps of GPipe on two
hosts, in turn with all activations in memory, with recomputation, and with what a
microbatch holds on disk. Simulated are the step and the memory of the fullest host, by
`divisible.planning.plan_simulation.simulate_plan` from profiles, the speed of the hosts
when they are busy, the measured link and the measured disk. Measured are the median of
the steps, and the peak of live arrays (tracemalloc, which NumPy reports to).

Then `best_plan` chooses under a memory limit among all of these, weights on disk, and
one host more. In each of the cases another way should win. What it would choose if it
had but one way is measured in turn with its choice, which should be the fastest.

The profiles come from a whole core, as in benchmarks.plan_choice, which says why.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.initializers import HeNormal

from benchmarks.common.hosts import (
    Hosts,
    add_hosts_arguments,
    keep_freed_memory,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios
from divisible import (
    Disk,
    Divisible,
    Machine,
    MemoryLimitError,
    Plan,
    Profile,
    best_plan,
    deferred_init,
)
from divisible.streaming import measure_disk, stream

MIB = 2**20
LINK = "1gbit"
SCHEDULE, MICROBATCHES = "gpipe", 8
#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (16, 8)
#: Options of plans, by name.
WAYS = {
    "hold": {"recompute": ["never"]},
    "recompute": {"recompute": ["always"]},
    "disk": {"recompute": ["never"]},
}
TARGET, DEADLINE = 0.15, 3000
#: Seconds between two looks of a rank that waits for the next step.
PAUSE = 0.002


class Case(NamedTuple):
    """A model on hosts with a limit of memory.

    Attributes:
        name: The way that is expected to win.
        model: The name of the model, its width, its layers and its minibatch.
        n_hosts: Number of hosts.
        limit: Memory of a host, as a part of the memory that two hosts need to hold
            everything.
    """

    name: str
    model: tuple[str, int, int, int]
    n_hosts: int
    limit: float


MODELS = (("perceptron", 512, 16, 4096), ("convolutions", 24, 8, 128))
CASES = (
    Case("more ranks", ("perceptron", 512, 16, 4096), 3, 0.8),
    Case("recompute", ("pointwise", 64, 6, 32768), 2, 0.7),
    Case("hold on disk", ("perceptron", 1024, 12, 4096), 2, 0.7),
    Case("stream", ("perceptron", 2048, 8, 1024), 2, 0.6),
)


def make_model(name: str, width: int, n_layers: int) -> Divisible:
    """Makes the same model on every rank, without its weights."""
    layers: list[Any] = []
    with deferred_init(seed=0):
        if name == "convolutions":
            layers = [L.Convolution2D(3, width, 3, pad=1), F.relu]
            for _ in range(n_layers - 1):
                layers += [L.Convolution2D(width, width, 3, pad=1), F.relu]
            layers.append(lambda x: F.mean(x, axis=(2, 3)))
        else:
            more = [F.leaky_relu, F.relu] * 4 if name == "pointwise" else []
            for _ in range(n_layers - 1):
                layers += [L.Linear(width, width, initialW=HeNormal()), F.relu, *more]
        return Divisible(*layers, L.Linear(width, 10))


def minibatch(name: str, width: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random samples and labels."""
    random = np.random.RandomState(0)
    shape = (3, 32, 32) if name == "convolutions" else (width,)
    x = random.standard_normal((size, *shape)).astype("f")
    return x, random.randint(0, 10, size).astype("i")


def work(job: dict[str, Any]) -> Any:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    from divisible import profile

    if job["task"] == "profile":
        *model, batch = job["model"]
        x, t = minibatch(*model[:2], batch)
        for file, n in zip(job["files"], job["sizes"]):
            found = profile(make_model(*model), x[:n], t[:n], repeat=7)
            found.save(file)
        return None
    return OnHosts(MPI.COMM_WORLD, job).answer()


class OnHosts:
    """A model on hosts, whose plans are simulated and measured.

    Args:
        comm: A rank on each host.
        job: The task, the model, and the files of its profiles.
    """

    def __init__(self, comm: Any, job: dict[str, Any]) -> None:
        from benchmarks.common.probes import busy_seconds, link, slowed

        self._comm, self._job = comm, job
        *self._model, self._batch = job["model"]
        self._data = minibatch(*self._model[:2], self._batch)
        self._network = link(comm)
        comm.Barrier()
        # All hosts at once, as they use it: they share the machine's.
        mine = measure_disk()
        rates = zip(*comm.allgather((mine.read, mine.write)))
        self._disk = Disk(*map(min, rates))
        self._profiles = []
        for profile in map(Profile.load, job["files"]):
            equal = Plan.uniform(len(profile), comm.size)
            stage = make_model(*self._model).divide(*equal.range(comm.rank))
            x = self._data[0][: profile.n_samples]
            busy = sum(busy_seconds(comm, stage, x, PAUSE, 2.0))
            slower = busy / sum(layer.seconds for layer in profile.layers)
            self._profiles.append(slowed(profile, slower))

    def answer(self) -> dict[str, Any]:
        """Returns the disk, and what the task has found."""
        disk = f"{self._disk.read / 1e6:.0f} MB/s read,"
        disk += f" {self._disk.write / 1e6:.0f} MB/s written"
        task = self._job["task"]
        found = self.ways() if task == "ways" else self.choice(self._job["limit"])
        return {"disk": disk, "found": found}

    def ways(self) -> dict[str, Any]:
        """Returns the simulated and measured results, by way."""
        plans = {way: self._plan(way, 2) for way in WAYS}
        seconds = alternate(plans, self._job["rounds"], self._seconds)
        return {
            way: {
                "cuts": list(plan.cuts),
                "simulated": self._simulated(plan),
                "seconds": seconds[way],
                "peak": self._peak(plan),
            }
            for way, plan in plans.items()
        }

    def choice(self, part: float) -> dict[str, Any]:
        """Returns the choice under a limit of memory, and what else there is."""
        limit = part * self._simulated(self._plan("hold", 2))["peak"]
        plans: dict[str, Plan] = {}
        reasons = {}
        for name, options in {
            "chosen": {"recompute": ["never", "always"], "disk": self._disk},
            "hold, 2 ranks": {**WAYS["hold"], "pipeline_ranks": [2]},
            "hold, all ranks": {
                **WAYS["hold"],
                "pipeline_ranks": [self._comm.size],
            },
            "recompute": {**WAYS["recompute"], "pipeline_ranks": [2]},
            "disk": {**WAYS["disk"], "pipeline_ranks": [2], "disk": self._disk},
        }.items():
            try:
                plan = self._best(limit, **options)
            except MemoryLimitError:
                reasons[name] = "does not fit"
                continue
            if any(_in_words(plan) == _in_words(each) for each in plans.values()):
                reasons[name] = "is the chosen one"
            else:
                plans[name] = plan
        seconds = alternate(plans, self._job["rounds"], self._seconds)
        return {
            "limit": limit,
            "reasons": reasons,
            "plans": {
                name: {
                    "words": _in_words(plan),
                    "simulated": self._simulated(plan),
                    "seconds": seconds[name],
                }
                for name, plan in plans.items()
            },
        }

    def _best(
        self, limit: float | None, disk: Disk | None = None, **options: Any
    ) -> Plan:
        machine = Machine(
            self._comm.size, memory=limit, network=self._network, disk=disk
        )
        return best_plan(
            self._profiles,
            machine,
            batch=self._batch,
            microbatches=[MICROBATCHES],
            schedules=[SCHEDULE],
            **options,
        )

    def _plan(self, way: str, n_ranks: int) -> Plan:
        plan = self._best(None, **WAYS[way], pipeline_ranks=[n_ranks])
        return plan if way != "disk" else _on_disk(plan)

    def _simulated(self, plan: Plan) -> dict[str, float]:
        from divisible.planning.plan_simulation import simulate_plan

        timeline = simulate_plan(
            plan,
            self._profiles,
            batch=self._batch,
            machine=Machine(plan.n_ranks, network=self._network, disk=self._disk),
        )
        return {"seconds": timeline.makespan, "peak": float(max(timeline.peak_memory))}

    def _pipeline(self, plan: Plan) -> Any:
        """Returns this rank's pipeline; ``None`` if the plan has none for it."""
        from pipeline import Pipeline

        rank = self._comm.rank
        comm = self._comm.Split(0 if rank < plan.n_stages else 1, rank)
        if rank >= plan.n_stages:
            return None
        model = make_model(*self._model)
        if plan.streamed:
            stream(model, memory=2**62, plan=plan, disk=self._disk, show=False)
        return Pipeline(
            model.divide(*plan.range(rank)),
            comm,
            n_microbatches=plan.n_microbatches,
            schedule=plan.schedule,
            accfun=None,
            recompute=plan.recompute,
            hold_in=plan.hold_in[rank] if plan.hold_in else "memory",
        )

    def _seconds(self, plan: Plan) -> float:
        """Measures a step of a plan."""
        from benchmarks.common.perceptron import step_seconds

        pipe = self._pipeline(plan)

        def step() -> None:
            if pipe is not None:
                pipe.step(*self._data)

        # Makes buffers, gradients and files.
        step()
        step()
        return step_seconds(self._comm, step, PAUSE)

    def _peak(self, plan: Plan) -> float:
        """Returns the bytes of live arrays at the peak, of the fullest host."""
        import tracemalloc

        tracemalloc.start()
        pipe = self._pipeline(plan)
        for _ in range(2):
            if pipe is not None:
                pipe.step(*self._data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return float(max(self._comm.allgather(peak)))


def _on_disk(plan: Plan) -> Plan:
    """Returns a plan that holds everything on disk."""
    return Plan(
        plan.cuts,
        n_microbatches=plan.n_microbatches,
        schedule=plan.schedule,
        recompute=plan.recompute,
        hold_in=("disk",) * plan.n_stages,
    )


def _in_words(plan: Plan) -> str:
    words = [f"{plan.n_stages} ranks, cuts {list(plan.cuts)}"]
    if plan.recompute != "never":
        words.append(f"recompute {plan.recompute}")
    if "disk" in plan.hold_in:
        words.append(f"held on disk by {plan.hold_in.count('disk')}")
    if plan.streamed:
        words.append(f"{len(plan.streamed)} layers streamed")
    return "; ".join(words)


def on_hosts(
    arguments: argparse.Namespace,
    model: tuple[str, int, int, int],
    n_hosts: int,
    job: dict[str, Any],
) -> tuple[str, Any]:
    """Profiles a model on a whole core, and runs a task on hosts.

    Returns:
        The speed of the disk, in words, and the answer of the task.
    """
    module = __spec__.name
    with tempfile.TemporaryDirectory() as folder:
        sizes = [model[-1] // parts for parts in PROFILED]
        files = [str(Path(folder, f"{n}.json")) for n in sizes]
        common = {"model": model, "files": files, "sizes": sizes}
        run(Hosts(1, 1.0), module, {**common, "task": "profile"}, DEADLINE)
        hosts = Hosts(n_hosts, arguments.cpu / n_hosts, LINK)
        common.update(rounds=arguments.rounds, **job)
        answer = run(hosts, module, common, DEADLINE)
        return answer["disk"], answer["found"]


def show_ways(arguments: argparse.Namespace, result: Result) -> None:
    """Writes the table of the ways to hold."""
    errors: dict[str, list[float]] = {"step": [], "memory": []}
    for model in MODELS:
        disk, found = on_hosts(arguments, model, 2, {"task": "ways"})
        name, width, n_layers, batch = model
        result.write(
            "",
            f"{n_layers} layers of {width}, {name}, minibatch {batch}, 2 hosts; disk"
            f" {disk}",
            "way          step s  simulated  MiB  simulated  step of 'hold'",
        )
        for way, one in found.items():
            step = statistics.median(one["seconds"])
            simulated = one["simulated"]
            errors["step"].append(abs(simulated["seconds"] / step - 1))
            errors["memory"].append(abs(simulated["peak"] / one["peak"] - 1))
            result.write(
                f"{way:10} {step:8.3f} {simulated['seconds']:10.3f}"
                f" {one['peak'] / MIB:4.0f} {simulated['peak'] / MIB:10.0f} "
                f" {ratios(one['seconds'], found['hold']['seconds'])}"
            )
    result.write("")
    for what, each in errors.items():
        median = statistics.median(each)
        word = "met" if median <= TARGET else "MISSED"
        result.write(
            f"{what}: error of the simulation {median:.1%} in the median, at most"
            f" {max(each):.1%}; wanted {TARGET:.0%}: {word}"
        )


def show_choices(arguments: argparse.Namespace, result: Result) -> None:
    """Writes the choice in each case, and the alternatives."""
    for case in CASES:
        job = {"task": "choice", "limit": case.limit}
        disk, found = on_hosts(arguments, case.model, case.n_hosts, job)
        name, width, n_layers, batch = case.model
        result.write(
            "",
            f"{case.name}: {n_layers} layers of {width}, {name}, minibatch {batch},"
            f" {case.n_hosts} hosts of {found['limit'] / MIB:.0f} MiB; disk"
            f" {disk}",
        )
        plans = found["plans"]
        medians = {
            name: statistics.median(one["seconds"]) for name, one in plans.items()
        }
        for name, one in plans.items():
            of_chosen = ratios(one["seconds"], plans["chosen"]["seconds"])
            result.write(
                f"{name:16} {medians[name]:7.3f} s, simulated"
                f" {one['simulated']['seconds']:7.3f}, of the chosen {of_chosen}:"
                f" {one['words']}"
            )
        for name, reason in found["reasons"].items():
            result.write(f"{name:16} {reason}")
        slower = medians["chosen"] / min(medians.values())
        word = "met" if slower <= 1 + TARGET / 3 else "MISSED"
        result.write(f"chosen / fastest {slower:.2f}, wanted 1.05: {word}")


def main() -> None:
    """Runs all and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    prepare()
    keep_freed_memory()
    result = Result("held_activations", arguments.output)
    result.write(command(), machine("numpy", "chainer", "mpi4py", "mpich"))
    show_ways(arguments, result)
    show_choices(arguments, result)
    result.save()


if __name__ == "__main__":
    main()
