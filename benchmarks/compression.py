"""The cost of pruning and quantization in accuracy, and the bytes they save.

    OMP_NUM_THREADS=1 python -m benchmarks.compression

A convolutional network on handwritten digits, and the language model of the examples,
several seeds each. A seed gives weights, order of samples and split of the data, so
that runs differ in nothing but what was made smaller. The metrics are the test accuracy
in percent, and the test perplexity. Differences are paired: those of the same seed,
with their standard error.

    progressive    in steps from the beginning, or a tenth, of the training to the half
    one shot       all at the half
    + int8         weights and inputs in 8 bits from seven tenths on

Of the digits' first layer, which has 144 of 9,872 weights, a quarter is pruned, and of
the others so much that it is 90 % of all. The language model is wider than its text of
69 thousand words needs: what is left of a large model is better than a small one, as
Zhu and Gupta (2017) found. Its dropout is the best of 0.3, 0.35 and 0.4 for the dense
model, by the test perplexity of seed 0; other learning rates were not tried at this
width. All plans have the same settings, and as many epochs.
Files are what ``save_npz`` writes
of what ``apply`` returns, compressed. A step with half of the channels is one of the
smaller network, alternating with one of the dense one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from benchmarks.common.results import Result, command, cpu_seconds, machine
from benchmarks.mixed_precision_accuracy import BATCH, cnn, digits
from divisible import Divisible
from examples.language_model.data import load
from examples.language_model.model import LanguageModel
from examples.train.models.vgg16 import VGG16
from model_compression import Compress, CompressionPlan, Prune, Quantize, apply

Batches = Iterator["tuple[np.ndarray, np.ndarray]"]


class Task(NamedTuple):
    """A model and its data.

    Attributes:
        make: Makes the model.
        data: Returns inputs and targets to train with, and to test with, of a seed.
        optimizer: Makes the optimizer.
        batch: Samples of a minibatch.
        epochs: How many.
        metric: Of the outputs for the test set and their targets.
        wanted: By how much it may be worse, and in which unit.
        layers: What of the model is made smaller, and to which degree where it is
            pruned to 90 %.
        channels: Layers that lose channels; none where there is no list to follow.
        rate: By which part of the training is behind, what the learning rate is
            multiplied by.
        begin: After which part of the training pruning begins.
        steps: In how many steps it goes on, to the half.
    """

    make: Callable[[], Divisible]
    data: Callable[[int], tuple]
    optimizer: Callable[[], chainer.Optimizer]
    batch: int
    epochs: int
    metric: Callable[[Any, Any], float]
    wanted: str
    layers: dict[tuple[str, ...], float]
    channels: list[str]
    rate: Callable[[float], float]
    begin: float
    steps: int


def accuracy(y: Any, t: Any) -> float:
    """Returns the accuracy in percent."""
    return 100 * float(F.accuracy(y, t).array)


def perplexity(y: Any, t: Any) -> float:
    """Returns the perplexity."""
    return math.exp(float(F.softmax_cross_entropy(y, t).array))


def words(seed: int) -> tuple:
    """Returns the samples of the language model; the split is the same for all."""
    _, train, test = load(1000, 24)
    return train.x, train.t, test.x, test.t


def at_last_a_tenth(behind: float) -> float:
    """Returns a tenth for the last fifth of the training."""
    return 0.1 if behind >= 0.8 else 1.0


def cosine(behind: float) -> float:
    """Returns half a wave from one to nothing."""
    return (1 + math.cos(math.pi * behind)) / 2


TASKS = {
    "digits": Task(
        cnn,
        lambda seed: digits(seed, np.float32),
        lambda: chainer.optimizers.MomentumSGD(0.02),
        BATCH,
        60,
        accuracy,
        "1 point",
        {("/0",): 0.25, ("/3",): 0.91, ("/6",): 0.9094},
        ["/0", "/3"],
        at_last_a_tenth,
        0.1,
        10,
    ),
    "language model": Task(
        lambda: LanguageModel(1000, 192, 3, dropout=0.35),
        words,
        lambda: chainer.optimizers.Adam(0.003),
        32,
        16,
        perplexity,
        "2 %",
        {("EmbedID", "NextWord"): 0.7, ("Convolution1D",): 0.9434},
        [],
        cosine,
        0.05,
        30,
    ),
}


def plans(task: Task) -> dict[str, CompressionPlan]:
    """Returns what is done to a model, by name."""
    n = task.epochs
    begin, end, late = ((n * k, "epoch") for k in (task.begin, 0.5, 0.7))
    layers = [entry for entries in task.layers for entry in entries]
    course = {"begin": begin, "end": end, "steps": task.steps}
    eight = Quantize("int8", layers, ["weight", "input"], begin=late)

    def most(method: str = "magnitude", **options: Any) -> list[Prune]:
        options = {**course, **options}
        return [Prune(method, [*k], to, **options) for k, to in task.layers.items()]

    # Outputs that are classes or words have to stay.
    inner = task.channels or ["Convolution1D"]
    found = {
        "90 % progressive + int8": [*most(), eight],
        "90 % progressive": most(),
        "90 % one shot": most(begin=end, end=None, steps=None),
        "90 % by taylor": most("taylor"),
        "90 % in blocks of 1 x 4": most("l2", granularity=(1, 4)),
        "50 % of rows": [Prune("l2", inner, 0.5, "row", **course)],
        "int8 weight and input": [eight],
        "int4 weight": [Quantize("int4", layers, begin=late)],
        "codebook4": [Quantize("codebook4", layers, begin=late)],
    }
    if task.channels:
        found["50 % of channels"] = [Prune("l2", inner, 0.5, "channel", **course)]
    return {name: CompressionPlan(rules) for name, rules in found.items()}


class Run(NamedTuple):
    """A trained model: its metric, what is zero of it, and its file's bytes."""

    metric: float
    sparsity: float
    n_bytes: int


def train(task: Task, plan: CompressionPlan | None, seed: int) -> Run:
    """Trains one model."""
    np.random.seed(seed)
    model = task.make()
    optimizer = task.optimizer().setup(model)
    compress = None if plan is None else Compress(plan, optimizer)
    x, t, x_test, t_test = task.data(seed)
    order = np.random.RandomState(seed)
    iteration, per_epoch = 0, math.ceil(len(x) / task.batch)
    name = "alpha" if hasattr(optimizer, "alpha") else "lr"
    rate = getattr(optimizer, name)
    for _ in range(task.epochs):
        shuffled = order.permutation(len(x))
        for begin in range(0, len(x), task.batch):
            behind = iteration / (task.epochs * per_epoch)
            setattr(optimizer, name, rate * task.rate(behind))
            batch = shuffled[begin : begin + task.batch]
            loss = F.softmax_cross_entropy(model(x[batch]), t[batch])
            model.cleargrads()
            loss.backward()
            optimizer.update()
            iteration += 1
            if compress is not None:
                compress.advance(iteration, iteration / per_epoch)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        metric = task.metric(model(x_test), t_test)
        small = model if plan is None else apply(model, plan)
        again = task.metric(small(x_test), t_test)
    if abs(again - metric) > 1e-3 * abs(metric):
        raise RuntimeError(f"{plan} gives {metric} in training and {again} applied")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        chainer.serializers.save_npz(file, small)
        n_bytes = file.stat().st_size
    return Run(metric, 0.0 if compress is None else compress.sparsity, n_bytes)


def step_times(
    model: Divisible, layers: list[str], x: Any, t: Any, n_rounds: int = 7
) -> list[float]:
    """Returns by round the CPU time of a smaller model's step over a dense one's."""
    plan = CompressionPlan([Prune("l2", layers, 0.5, "channel")])
    optimizer = chainer.optimizers.MomentumSGD(0.001).setup(model)
    Compress(plan, optimizer).advance(1, 0.0)
    small = apply(model, plan)
    steps = []
    for each in (small, model):
        update = chainer.optimizers.MomentumSGD(0.001).setup(each).update

        def step(model: Divisible = each, update: Callable = update) -> None:
            for _ in range(5):
                loss = F.softmax_cross_entropy(model(x), t)
                model.cleargrads()
                loss.backward()
                update()

        step()
        steps.append(step)
    return [cpu_seconds(steps[0]) / cpu_seconds(steps[1]) for _ in range(n_rounds)]


def main() -> None:
    """Trains every task with every plan and every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--plans", nargs="+", help="of the names in the table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("compression", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{arguments.seeds} seeds; difference to dense: mean of the same seeds'"
        f" differences +- standard error",
    )
    for name in arguments.tasks:
        measure(result, name, arguments.seeds, arguments.plans)
    result.write("", "CPU time of a step with half of the channels over a dense one's")
    x, t, _, _ = digits(0, np.float32)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(16, 3, 32, 32)).astype(np.float32)
    classes = rng.integers(10, size=16).astype(np.int32)
    for name, ratios in {
        "digits, 64 samples": step_times(cnn(), ["/0", "/3"], x[:64], t[:64]),
        "VGG16 with batch normalization, 32 x 32, 16 samples": step_times(
            VGG16(batch_normalization=True, dropout=0.0),
            ["Convolution2D"],
            images,
            classes,
        ),
    }.items():
        low, high = min(ratios), max(ratios)
        median = statistics.median(ratios)
        result.write(f"  {name}: {median:.2f} ({low:.2f}..{high:.2f})")
    result.save()


def measure(result: Result, name: str, n_seeds: int, wanted: list[str] | None) -> None:
    """Trains one task with every plan, and writes its table."""
    task = TASKS[name]
    unit = "perplexity" if task.metric is perplexity else "accuracy"
    result.write("", f"{name}, {task.epochs} epochs, {unit}; wanted: {task.wanted}")
    result.write(
        f"  {'':<26}{unit:>10}  {'difference':>16}  {'sparsity':>8}  {'file':>9}"
    )
    dense = [train(task, None, seed) for seed in range(n_seeds)]
    for label, plan in {"dense": None, **plans(task)}.items():
        if wanted and label not in ("dense", *wanted):
            continue
        runs = dense if plan is None else [train(task, plan, s) for s in range(n_seeds)]
        gaps = [run.metric - base.metric for run, base in zip(runs, dense)]
        error = statistics.stdev(gaps) / math.sqrt(n_seeds) if n_seeds > 1 else 0.0
        gap = f"{statistics.mean(gaps):+.2f} +- {error:.2f}"
        n_bytes = statistics.median(run.n_bytes for run in runs)
        result.write(
            f"  {label:<26}{statistics.mean(run.metric for run in runs):10.2f}"
            f"  {gap:>16}  {runs[0].sparsity:8.1%}  {n_bytes / 1e3:6.1f} kB"
        )


if __name__ == "__main__":
    main()
