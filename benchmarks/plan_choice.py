"""The plan that is chosen against all others, measured.

    python -m benchmarks.plan_choice

A perceptron of 12 unequal layers runs on 3 emulated hosts, with 1 to 16 microbatches.
Every cut with every number of microbatches makes a step (55 x 16 plans). The search
`best_plan` chooses one without having seen a step: from profiles of the layers, the
speed of the hosts when all of them are busy, and the measured link. Then the chosen
plan, the best found and the equal-layers cut take turns. The chosen one should be at
most 5 % slower than the best.

The profiles come from a whole core. A host gets its quota of a core in pieces that are
longer than a small layer takes. So the median of a small layer's times would be that of
a whole core, unlike that of a large layer, and small microbatches would look too good.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.initializers import HeNormal

from benchmarks.common import quick
from benchmarks.common.hosts import (
    Hosts,
    add_hosts_arguments,
    prepare,
    run,
)
from benchmarks.common.results import Result, alternate, command, machine, ratios
from divisible import Divisible, Machine, Plan, Profile, best_plan

N_HOSTS = 3
LINK = "1gbit"
#: Inputs and outputs of the layers: some are 16 times as much work as others.
WIDTHS = (256, 512, 768, 1024, 512, 256, 256, 768, 1024, 1024, 512, 256, 10)
#: The sizes of microbatch at which layers are profiled, as parts of the minibatch.
PROFILED = (16, 8, 4, 1)
TARGET = 1.05
#: Seconds between two looks of a rank that waits for the next step.
PAUSE = 0.002
#: Options of a quick run.
QUICK = {"sample": 40, "rounds": 2, "finalists": 2}


class Layer(chainer.Chain):
    """A fully connected layer with its activation, to be cut as one."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        with self.init_scope():
            self.linear = L.Linear(n_in, n_out, initialW=HeNormal())

    def forward(self, x: Any) -> Any:
        """Passes ``x`` through the layer."""
        return F.relu(self.linear(x))


def make_model() -> Divisible:
    """Makes the same model on every rank."""
    np.random.seed(0)
    return Divisible(*[Layer(*pair) for pair in zip(WIDTHS, WIDTHS[1:])])


def work(job: dict[str, Any]) -> dict[str, Any] | None:
    """Runs on each host; the answer of the first one counts."""
    # Here, because the process that only starts the hosts should not start MPI.
    from mpi4py import MPI

    from benchmarks.common.perceptron import minibatch
    from divisible import profile

    x, t = minibatch(WIDTHS[0], job["batch"])
    if job["task"] == "profile":
        for file, n in zip(job["files"], job["sizes"]):
            profile(make_model(), x[:n], t[:n], repeat=9).save(file)
        return None
    return Search(MPI.COMM_WORLD, x, t, job).answer()


class Search:
    """Chooses a plan, then measures it and all others.

    Args:
        comm: A rank on each host.
        x: Samples of a minibatch.
        t: Their labels.
        job: The options, and the files of the profiles.
    """

    def __init__(self, comm: Any, x: np.ndarray, t: np.ndarray, job: dict) -> None:
        from benchmarks.common.probes import link

        self._comm = comm
        self._data = x, t
        self._job = job
        self._model = make_model()
        self._network = link(comm)
        self._profiles = [self._on_hosts(Profile.load(file)) for file in job["files"]]

    def _on_hosts(self, profile: Profile) -> Profile:
        """Returns a profile with the speed that busy hosts have."""
        from benchmarks.common.probes import busy_seconds, slowed

        x = self._data[0][: profile.n_samples]
        equal = Plan.uniform(len(self._model), self._comm.size)
        stage = self._model.divide(*equal.range(self._comm.rank))
        seconds = sum(busy_seconds(self._comm, stage, x, PAUSE))
        return slowed(profile, seconds / sum(layer.seconds for layer in profile.layers))

    def answer(self) -> dict[str, Any]:
        """Returns the plans with predictions and measurements."""
        numbers = list(range(1, self._job["most"] + 1))
        chosen = best_plan(
            self._profiles,
            Machine(self._comm.size, network=self._network),
            pipeline_ranks=[self._comm.size],
            microbatches=numbers,
            schedules=["1f1b"],
            recompute=["never"],
        )
        plans = all_plans(len(self._model), self._comm.size, numbers)
        if self._job["sample"]:
            order = np.random.RandomState(0).permutation(len(plans))
            plans = [plans[i] for i in order[: self._job["sample"]]]
        measured = []
        for n, plan in enumerate(plans, 1):
            measured.append(self._seconds(plan))
            if self._comm.rank == 0 and n % 20 == 0:
                print(f"{n} of {len(plans)} plans", flush=True)

        # The best of many measurements is partly luck, so the best few run again.
        order = np.argsort(measured)
        finalists = {"chosen": chosen}
        found = [plans[i] for i in order[: self._job["finalists"]]]
        for n, plan in enumerate(found, 1):
            if (plan.cuts, plan.n_microbatches) != (chosen.cuts, chosen.n_microbatches):
                finalists[f"found {n}"] = plan
        equal = Plan.uniform(len(self._model), self._comm.size).cuts
        uniform = next((plans[i] for i in order if plans[i].cuts == equal), None)
        if uniform is not None:
            finalists["equal layers"] = uniform
        final = alternate(finalists, self._job["rounds"], self._seconds)
        return {
            "bandwidth": self._network.bandwidth,
            "latency": self._network.latency,
            "headline": chosen.headline,
            "measured": measured,
            "predicted": [self._predicted(plan) for plan in plans],
            "final": {
                name: {
                    "cuts": list(plan.cuts),
                    "microbatches": plan.n_microbatches,
                    "predicted": self._predicted(plan),
                    "seconds": final[name],
                }
                for name, plan in finalists.items()
            },
        }

    def _seconds(self, plan: Plan) -> float:
        """Measures one step of a plan."""
        from benchmarks.common.perceptron import step_seconds
        from pipeline import Pipeline

        x, t = self._data
        stage = self._model.divide(*plan.range(self._comm.rank))
        n, schedule = plan.n_microbatches, plan.schedule
        with Pipeline(
            stage, self._comm, n_microbatches=n, schedule=schedule, accfun=None
        ) as pipe:
            # Makes buffers and gradients, and learns how large the messages are.
            pipe.step(x, t)
            return step_seconds(self._comm, lambda: pipe.step(x, t), PAUSE)

    def _predicted(self, plan: Plan) -> float:
        from divisible.planning.plan_simulation import simulate_plan

        batch, network = self._job["batch"], self._network
        machine = Machine(plan.n_ranks, network=network)
        return simulate_plan(
            plan, self._profiles, batch=batch, machine=machine
        ).makespan


def all_plans(n_layers: int, n_stages: int, numbers: list[int]) -> list[Plan]:
    """Returns every cut with every number of microbatches."""
    return [
        Plan([0, *inner, n_layers], n_microbatches=m, schedule="1f1b")
        for inner in itertools.combinations(range(1, n_layers), n_stages - 1)
        for m in numbers
    ]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Profiles on a whole core, then chooses and measures on the hosts."""
    module, timeout = __spec__.name, arguments.timeout
    with tempfile.TemporaryDirectory() as folder:
        sizes = [-(-arguments.batch // parts) for parts in PROFILED]
        files = [str(Path(folder, f"{n}.json")) for n in sizes]
        job = {"batch": arguments.batch, "files": files, "sizes": sizes}
        one, hosts = Hosts(1, 1.0), Hosts(N_HOSTS, arguments.cpu / N_HOSTS, LINK)
        run(one, module, {**job, "task": "profile"}, timeout)
        for name in ("most", "rounds", "finalists", "sample"):
            job[name] = getattr(arguments, name)
        return run(hosts, module, {**job, "task": "search"}, timeout)


def main() -> None:
    """Runs the search and writes its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--batch", type=int, default=768)
    add("--most", type=int, default=16, help="microbatches")
    add("--rounds", type=int, default=15, help="of the final comparison")
    add("--finalists", type=int, default=8)
    add("--sample", type=int, help="try so many plans only, at random")
    add("--timeout", type=float, default=3600, help="seconds")
    add("--output", type=Path)
    arguments = quick.parse(parser, "plan_choice", QUICK)
    prepare()
    result = Result("plan_choice", arguments.output)
    result.write(
        command(),
        machine("numpy", "scipy", "chainer", "mpi4py", "mpich"),
    )
    answer = measure(arguments)
    measured, predicted = answer["measured"], answer["predicted"]
    errors = np.abs(np.divide(predicted, measured) - 1)
    result.write(
        f"{len(WIDTHS) - 1} layers on {N_HOSTS} hosts with equal shares of"
        f" {arguments.cpu:g} cores, batch {arguments.batch}; link"
        f" {answer['bandwidth'] / 1e6:.0f} MB/s, {answer['latency'] * 1e6:.0f} us",
        f"chosen: {answer['headline']}",
        "",
        f"{len(measured)} plans measured, from {min(measured):.4f} to"
        f" {max(measured):.4f} s a step",
        f"error of the prediction: median {np.median(errors):.1%},"
        f" 90 % below {np.quantile(errors, 0.9):.1%}, worst {errors.max():.1%}",
        "",
        f"again, in turn, {arguments.rounds} rounds:",
        f"{'':12} {'step s':>7} {'predicted':>9}  slower than the best",
    )
    final = answer["final"]
    medians = {name: statistics.median(one["seconds"]) for name, one in final.items()}
    best = min(medians, key=medians.__getitem__)
    for name, one in final.items():
        result.write(
            f"{name:12} {medians[name]:7.4f} {one['predicted']:9.4f} "
            f" {ratios(one['seconds'], final[best]['seconds'])}  {one['cuts']},"
            f" {one['microbatches']} microbatches"
        )
    slower = medians["chosen"] / medians[best]
    word = "met" if slower <= TARGET else "MISSED"
    result.write("", f"chosen / best {slower:.3f}, target {TARGET:g}: {word}")
    result.save()


if __name__ == "__main__":
    main()
