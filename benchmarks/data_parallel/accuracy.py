"""Accuracy after training with gradients of few bits, against float32.

    OMP_NUM_THREADS=1 python -m benchmarks.data_parallel.accuracy

Replicas of a small network read digits; their exchanges are simulated in one process,
on real gradients. Runs of one seed have weights, data, order and their first steps, in
float32, in common. The effect of the strategy of two roundings is compared over several
seeds, and Algorithm 1 of Oyama et al. with their other variants (their Figs. 8 and 11
to 13). Beside it is float32 at the learning rate at which the algorithm trains in fact.
Its *gain* is the projection of its mean gradient on the exact one. There is one seed
for 64 replicas: 8 nodes of 8, or all in one level.

Two roundings are on 4 nodes of one replica, Algorithm 1 on 2 nodes of two.

The last tables compare the gradients themselves with the ranges of the formats (Figs.
1, 9 and 10). `benchmarks.data_parallel.distribution` writes only these.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import quick
from benchmarks.common.results import Result, command, machine, new_file
from benchmarks.data_parallel import distribution
from benchmarks.data_parallel.digits import SmallNet
from benchmarks.data_parallel.simulated import (
    TEST_EVERY,
    Replicas,
    Run,
    Task,
    Way,
)

BASE = "fp32"
#: Points of accuracy that fewer bits may cost, and standard errors that excuse more.
POINTS, ERRORS = 0.5, 2.0
#: Accuracy in percent until which steps are counted.
TARGET = 95.0
PAPER, NEAREST = "Algorithm 1, 1e-5", "Algorithm 1, nearest"


def algorithm1(epsilon: float = 1e-5, local_size: int = 2, **fields: object) -> Way:
    """Returns Algorithm 1 as printed: all parameters in 8 bits."""
    rounding = fields.pop("rounding", "truncate")
    options = {"exchange_dtype": "fp8", "strategy": "oyama2017", "rounding": rounding}
    options |= {"epsilon": epsilon, "local_size": local_size}
    return Way(options, exempts=False, **fields)


#: With all seeds.
MAIN = {
    BASE: Way(),
    **{name: Way({"exchange_dtype": name}) for name in ("int8", "e4m3")},
}
#: With fewer.
OTHERS = {
    "e5m2": Way({"exchange_dtype": "e5m2"}),
    **{
        f"{name}, {text}": Way({"exchange_dtype": name}, exempts, feedback)
        for name in ("int8", "e4m3", "e5m2")
        for text, exempts, feedback in (
            ("no exempt", False, False),
            ("feedback", True, True),
            ("feedback, no exempt", False, True),
        )
    },
    PAPER: algorithm1(),
    "Algorithm 1, 1e-4": algorithm1(1e-4),
    "Algorithm 1, 1e-3": algorithm1(1e-3),
    "Algorithm 1, no ratio": algorithm1(ratio=False),
    NEAREST: algorithm1(rounding="nearest"),
}
LARGE = {
    BASE: Way(),
    "int8, 8 x 8": Way({"exchange_dtype": "int8", "local_size": 8}),
    "e4m3, 8 x 8": Way({"exchange_dtype": "e4m3", "local_size": 8}),
    "Algorithm 1, 8 x 8": algorithm1(local_size=8),
    "Algorithm 1, 8 x 8, nearest": algorithm1(local_size=8, rounding="nearest"),
    "Algorithm 1, one level": algorithm1(local_size=1),
    "Algorithm 1, one level, nearest": algorithm1(local_size=1, rounding="nearest"),
}
Runs = dict[str, list[Run]]
#: Options of a quick run.
QUICK = {"seeds": 1, "few": 1, "common": 20, "steps": 60, "large_steps": 40}


def train(
    task: Task,
    ways: dict[str, Way],
    seed: int,
    gains_of: dict[str, str],
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Run]:
    """Trains with each way from the same common steps.

    Args:
        task: Settings of the training.
        ways: Ways by name.
        seed: Seed of all runs.
        gains_of: Ways by the name of an additional run in float32, whose learning rate
            is multiplied by the way's gain.
        progress: Function that is called with a text after each run.
    """
    replicas = Replicas(task, seed)
    snapshot = replicas.train_common()
    runs = {}
    for name, way in ways.items():
        replicas.load(snapshot)
        runs[name] = replicas.train(way)
        progress(f"{task.n_replicas} replicas, seed {seed}: {name}")
    for name, other in gains_of.items():
        replicas.load(snapshot)
        gain = statistics.mean(runs[other].gains)
        if name.endswith("/ gain"):
            runs[name] = replicas.train(ways[other]._replace(lr_factor=1 / gain))
        else:
            runs[name] = replicas.train(Way(lr_factor=gain))
        progress(f"{task.n_replicas} replicas, seed {seed}: {name}")
    return runs


def paired(runs: Sequence[Run], base: Sequence[Run]) -> tuple[float, float]:
    """Returns the mean difference of the best accuracies, and its standard error."""
    each = [run.best - other.best for run, other in zip(runs, base)]
    if len(each) == 1:
        return each[0], 0.0
    return statistics.mean(each), statistics.stdev(each) / len(each) ** 0.5


def verdict(difference: float, error: float) -> str:
    """Returns whether so much was allowed to be lost."""
    allowed = max(POINTS, ERRORS * error)
    return (
        f"at most {allowed:.2f} lost: {'met' if -difference <= allowed else 'MISSED'}"
    )


def steps_to(run: Run, task: Task, target: float = TARGET) -> int | None:
    """Returns the steps up to the first test with an accuracy; ``None`` if none has."""
    first = (task.common // TEST_EVERY + 1) * TEST_EVERY
    for i, value in enumerate(run.accuracies):
        if value >= target:
            return first + i * TEST_EVERY
    return None


def write(result: Result, task: Task, runs: Runs) -> None:
    """Writes a table of runs."""
    n_tests = len(runs[BASE][0].accuracies)
    shown = sorted({*range(0, n_tests, max(1, n_tests // 6)), n_tests - 1})
    first = (task.common // TEST_EVERY + 1) * TEST_EVERY
    heads = "".join(f"{first + i * TEST_EVERY:>7}" for i in shown)
    result.write(
        f"{'':32} {'seeds':>5}  best %   difference (its error)   gain  error"
        f"  steps to {TARGET:g} %  accuracy at step {heads}"
    )
    for name, each in runs.items():
        difference, error = paired(each, runs[BASE])
        best = statistics.mean(run.best for run in each)
        gain, lost = (
            statistics.mean(statistics.mean(getattr(run, of)) for run in each)
            for of in ("gains", "errors")
        )
        steps = [steps_to(run, task) for run in each]
        reached = "-" if None in steps else f"{statistics.mean(steps):.0f}"
        curve = "".join(
            f"{statistics.mean(run.accuracies[i] for run in each):7.2f}" for i in shown
        )
        result.write(
            f"{name:32} {len(each):5}  {best:6.2f}   {difference:+10.2f} ({error:.2f})"
            f"       {gain:5.2f} {lost:6.3f}  {reached:>13}  {'':16} {curve}"
        )


def write_quantiles(result: Result, runs: Sequence[Run]) -> None:
    """Writes how far apart the quantiles of parameters are (Fig. 12)."""
    found = {name: statistics.median(q) for name, q in runs[0].quantiles.items()}
    low, high = (pick(found, key=found.get) for pick in (min, max))
    result.write(
        f"q of {PAPER}, first seed: from {found[low]:.2g} ({low.strip('/')}) to"
        f" {found[high]:.2g} ({high.strip('/')}), {found[high] / found[low]:.3g} times;"
        f" the paper: up to 1e6 times"
    )


def write_findings(result: Result, runs: Runs, large: Runs) -> None:
    """Writes the results beside those of the paper."""

    def loss(of: Runs, name: str) -> str:
        difference, error = paired(of[name], of[BASE])
        error_text = f" ({error:.2f})" if len(of[name]) > 1 else ""
        return f"{difference:+.2f}{error_text}"

    def gain(of: Runs, name: str) -> float:
        return statistics.mean(statistics.mean(run.gains) for run in of[name])

    result.write("", "Best accuracy against fp32, in points (standard error):")
    for name in ("int8", "e4m3"):
        difference, error = paired(runs[name], runs[BASE])
        result.write(f"{name}: {loss(runs, name)}; {verdict(difference, error)}")
    result.write(
        "Algorithm 1 with epsilon 1e-3, 1e-4, 1e-5: "
        + ", ".join(loss(runs, f"Algorithm 1, 1e-{n}") for n in (3, 4, 5))
        + "; the paper: +0.50 with 1e-5, all alike",
        f"Algorithm 1 without the ratio: {loss(runs, 'Algorithm 1, no ratio')}; the"
        f" paper: -8.25",
        f"Algorithm 1 keeps {gain(runs, PAPER):.2f} of the gradient. fp32 at that part"
        f" of the learning rate: {loss(runs, 'fp32, lr x gain')}; Algorithm 1 at the"
        f" learning rate divided by it: {loss(runs, 'Algorithm 1, lr / gain')};"
        f" to nearest, which keeps {gain(runs, NEAREST):.2f}: {loss(runs, NEAREST)}",
        f"64 replicas: 8 x 8 keeps {gain(large, 'Algorithm 1, 8 x 8'):.2f}:"
        f" {loss(large, 'Algorithm 1, 8 x 8')}; one level keeps"
        f" {gain(large, 'Algorithm 1, one level'):.2f}:"
        f" {loss(large, 'Algorithm 1, one level')}, and fp32 at that part of the"
        f" learning rate {loss(large, 'fp32, lr x gain of one level')}; int8"
        f" {loss(large, 'int8, 8 x 8')}; the paper: 8 x 8 like fp32, one level falls"
        f" clearly",
    )


def main() -> None:
    """Trains all, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seeds", type=int, default=5)
    add("--few", type=int, default=3, help="seeds of what is only compared")
    add("--common", type=int, default=Task().common, help="first steps, in float32")
    add("--steps", type=int, default=600)
    add("--large-steps", type=int, default=300, help="with 64 replicas")
    add("--output", type=Path)
    add("--plot", type=new_file, help="where to draw the figures")
    name = "data_parallel_accuracy"
    arguments = quick.parse(parser, name, QUICK)
    result = Result(name, arguments.output)
    task = Task(common=arguments.common)
    small = task._replace(steps=arguments.steps, lr=distribution.RATE)
    large = task._replace(
        n_replicas=64,
        steps=arguments.large_steps,
        lr=0.005,
        make=partial(SmallNet, False),
    )
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"the first {small.common} steps in float32 and common; momentum SGD; best of"
        f" the test accuracies of every {TEST_EVERY} steps, in percent, means over the"
        f" seeds",
    )
    runs: Runs = {}
    more = {"fp32, lr x gain": PAPER, "Algorithm 1, lr / gain": PAPER}
    for seed in range(arguments.seeds):
        is_full = seed < arguments.few
        ways = MAIN | OTHERS if is_full else MAIN
        gains_of = more if is_full else {}
        found = train(small, ways, seed, gains_of, result.progress)
        for name, run in found.items():
            runs.setdefault(name, []).append(run)
    result.write(
        "",
        f"{small.n_replicas} replicas, {small.batch} samples, learning rate"
        f" {small.lr:g}, batch normalization",
    )
    write(result, small, runs)
    write_quantiles(result, runs[PAPER])
    one = {"fp32, lr x gain of one level": "Algorithm 1, one level"}
    found = train(large, LARGE, 0, one, result.progress)
    of_large = {name: [run] for name, run in found.items()}
    result.write(
        "",
        f"{large.n_replicas} replicas, {large.batch} samples, learning rate"
        f" {large.lr:g}, no batch normalization",
    )
    write(result, large, of_large)
    write_findings(result, runs, of_large)

    n_steps = min(distribution.STEPS, small.steps)
    gradients, weights = distribution.measure(small._replace(steps=n_steps))
    distribution.write(result, n_steps, gradients, weights)
    result.save()
    if arguments.plot:
        # Matplotlib takes a second to load.
        from benchmarks.data_parallel import plots

        plots.draw(arguments.plot, small, large, runs, of_large, gradients, weights)


if __name__ == "__main__":
    main()
