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
the others so much that it is 90 % of all. All plans have the same settings, and as many
epochs as the dense network.

The language model is wider than its text of 69 thousand words needs: the remains of a
large model are better than a small one, as Zhu and Gupta (2017) found. Smaller models
continue from the dense one of the same seed, and learn from its scores of each word
(``Distillation``). Two rows show the effect of that::

    dense, taught     continues in the same way, and nothing is made smaller
    labels alone      continues with the usual loss, and becomes smaller too

The settings were sought with seed 0, by the perplexity of topics that were left out of
the training set for that. Dropout 0.45 is the best of 0.35, 0.4, 0.45 and 0.5 for the
dense model; the others are the best of some two dozen tries for the one with few
weights. The topics matter. Text that repeats the training set rewards memory, which
takes weights. In the training set occur 13 % of the test set's runs of 8 words, 6 % of
those of one tenth of the topics, and 22 % of another. Settings that suit the first
tenth made the smaller model 4 % worse than the dense one. These suit the second.

Files are those that ``save_npz`` writes of the result of ``apply``, compressed. A step
with half of the channels is one of the smaller network, alternating with one of the
dense one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from benchmarks.common import quick
from benchmarks.common.results import Result, command, cpu_seconds, machine
from benchmarks.mixed_precision_accuracy import BATCH, cnn, digits
from divisible import Divisible
from examples.language_model.data import load
from examples.language_model.model import LanguageModel
from examples.train.models.vgg16 import VGG16
from model_compression import (
    Compress,
    CompressionPlan,
    Distillation,
    Prune,
    Quantize,
    apply,
)


class Further(NamedTuple):
    """How smaller models continue from the dense one.

    Attributes:
        make: Function that makes the model, which then gets the dense one's weights.
        optimizer: Function that makes the optimizer.
        epochs: Number of further epochs.
        weight: Weight of the dense model's scores in the loss.
    """

    make: Callable[[], Divisible]
    optimizer: Callable[[], chainer.Optimizer]
    epochs: int
    weight: float


class Task(NamedTuple):
    """A model and its data.

    Attributes:
        make: Makes the model.
        data: Function from a seed to inputs and targets for training and test.
        optimizer: Makes the optimizer.
        batch: Samples of a minibatch.
        epochs: Number of epochs.
        further: How smaller models continue; they begin from initial weights if this is
            ``None``.
        metric: Metric of the outputs for the test set and their targets.
        wanted: Amount by which the metric may be worse, and its unit.
        layers: Parts of the model that are made smaller, and their degrees where the
            model is pruned to 90 %.
        channels: Layers that lose channels; none where there is no list to follow.
        rate: Factors of the learning rate, by the elapsed part of the training.
        begin: Part of the training after which pruning begins.
        steps: Number of steps until half of the training.
    """

    make: Callable[[], Divisible]
    data: Callable[[int], tuple]
    optimizer: Callable[[], chainer.Optimizer]
    batch: int
    epochs: int
    further: Further | None
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
        None,
        accuracy,
        "1 point",
        {("/0",): 0.25, ("/3",): 0.91, ("/6",): 0.9094},
        ["/0", "/3"],
        at_last_a_tenth,
        0.1,
        10,
    ),
    "language model": Task(
        lambda: LanguageModel(1000, 256, 3, dropout=0.45),
        words,
        lambda: chainer.optimizers.Adam(0.003),
        32,
        16,
        Further(
            lambda: LanguageModel(1000, 256, 3, dropout=0.2),
            lambda: chainer.optimizers.Adam(0.003),
            16,
            0.5,
        ),
        perplexity,
        "2 %",
        {("EmbedID", "NextWord"): 0.5, ("Convolution1D",): 0.9652},
        [],
        cosine,
        0.0,
        30,
    ),
}


#: Options of a quick run.
QUICK = {
    "tasks": ["digits"],
    "plans": ["90 % progressive + int8", "90 % one shot"],
    "seeds": 1,
}


class Variant(NamedTuple):
    """A row of the table: how a model is made smaller.

    Attributes:
        plan: Method by which the model is made smaller; ``None`` for none.
        weight: Weight of the dense model's scores in the loss.
    """

    plan: CompressionPlan | None
    weight: float


def variants(task: Task) -> dict[str, Variant]:
    """Returns the variants of a model, by name."""
    n = task.further.epochs if task.further else task.epochs
    weight = task.further.weight if task.further else 0.0
    begin, end, late = ((n * k, "epoch") for k in (task.begin, 0.5, 0.7))
    layers = [entry for entries in task.layers for entry in entries]
    course = {"begin": begin, "end": end, "steps": task.steps}
    eight = Quantize("int8", layers=layers, targets=["weight", "input"], begin=late)

    def most(method: str = "magnitude", **options: Any) -> list[Prune]:
        options = {**course, **options}
        return [
            Prune(method, layers=[*k], to=to, **options)
            for k, to in task.layers.items()
        ]

    # Outputs that are classes or words have to stay.
    inner = task.channels or ["Convolution1D"]
    plans = {
        "90 % progressive + int8": [*most(), eight],
        "90 % progressive": most(),
        "90 % one shot": most(begin=end, end=None, steps=None),
        "90 % by taylor": most("taylor"),
        "90 % in blocks of 1 x 4": most("l2", granularity=(1, 4)),
        "50 % of rows": [
            Prune("l2", layers=inner, to=0.5, granularity="row", **course)
        ],
        "int8 weight and input": [eight],
        "int4 weight": [Quantize("int4", layers=layers, begin=late)],
        "codebook4": [Quantize("codebook4", layers=layers, begin=late)],
    }
    if task.channels:
        plans["50 % of channels"] = [
            Prune("l2", layers=inner, to=0.5, granularity="channel", **course)
        ]
    found = {k: Variant(CompressionPlan(v), weight) for k, v in plans.items()}
    if task.further:
        both = found["90 % progressive + int8"].plan
        found["90 % + int8, labels alone"] = Variant(both, 0.0)
        found["dense, taught"] = Variant(None, weight)
    return found


class Run(NamedTuple):
    """A trained model: its metric, the part that is zero, and its file's bytes."""

    metric: float
    sparsity: float
    n_bytes: int


def run_dense(name: str, seed: int, file: Path) -> Run:
    """Trains the dense model of a task, and keeps it in a file."""
    model, run = train(TASKS[name], seed, Variant(None, 0.0))
    chainer.serializers.save_npz(file, model)
    return run


def run_variant(name: str, seed: int, file: Path, label: str) -> Run:
    """Trains a variant, where the task says so from the dense model in a file."""
    task, dense = TASKS[name], None
    if task.further:
        dense = task.make()
        chainer.serializers.load_npz(file, dense)
    return train(task, seed, variants(task)[label], dense)[1]


def train(
    task: Task, seed: int, variant: Variant, dense: Divisible | None = None
) -> tuple[Divisible, Run]:
    """Trains one model, from initial weights or from a dense one, then its teacher."""
    course = task if dense is None else task.further
    np.random.seed(seed)
    model = course.make()
    if dense is not None:
        model.copyparams(dense)
    optimizer = course.optimizer().setup(model)
    plan = variant.plan
    compress = None if plan is None else Compress(plan, optimizer)
    lossfun = Distillation(weight=variant.weight)
    x, t, x_test, t_test = task.data(seed)
    order = np.random.RandomState(seed)
    iteration, per_epoch = 0, math.ceil(len(x) / task.batch)
    name = "alpha" if hasattr(optimizer, "alpha") else "lr"
    rate = getattr(optimizer, name)
    for _ in range(course.epochs):
        shuffled = order.permutation(len(x))
        for begin in range(0, len(x), task.batch):
            behind = iteration / (course.epochs * per_epoch)
            setattr(optimizer, name, rate * task.rate(behind))
            batch = shuffled[begin : begin + task.batch]
            scores = said(dense, x[batch]) if variant.weight else None
            loss, _ = lossfun(model(x[batch]), t[batch], scores)
            model.cleargrads()
            loss.backward()
            optimizer.update()
            iteration += 1
            if compress is not None:
                compress.advance(iteration, iteration / per_epoch)
    metric = task.metric(said(model, x_test), t_test)
    small = model if plan is None else apply(model, plan)
    again = task.metric(said(small, x_test), t_test)
    if abs(again - metric) > 1e-3 * abs(metric):
        raise RuntimeError(f"{plan} gives {metric} in training and {again} applied")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        chainer.serializers.save_npz(file, small)
        n_bytes = file.stat().st_size
    sparsity = 0.0 if compress is None else compress.sparsity
    return model, Run(metric, sparsity, n_bytes)


def said(model: Divisible, x: Any) -> Any:
    """Returns a model's outputs for samples, as an array."""
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return model(x).array


def step_times(
    model: Divisible, layers: list[str], x: Any, t: Any, n_rounds: int = 7
) -> list[float]:
    """Returns by round the CPU time of a smaller model's step over a dense one's."""
    plan = CompressionPlan([Prune("l2", layers=layers, to=0.5, granularity="channel")])
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
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--output", type=Path)
    arguments = quick.parse(parser, "compression", QUICK)
    result = Result("compression", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{arguments.seeds} seeds; difference to dense: mean of the same seeds'"
        f" differences +- standard error",
    )
    for name in arguments.tasks:
        measure(result, name, arguments.seeds, arguments.plans, arguments.jobs)
    if "digits" in arguments.tasks:
        measure_steps(result)
    result.save()


def measure_steps(result: Result) -> None:
    """Compares steps of networks with half of their channels."""
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


def measure(
    result: Result, name: str, n_seeds: int, wanted: list[str] | None, n_jobs: int
) -> None:
    """Trains one task with every plan, and writes its table."""
    task = TASKS[name]
    labels = [label for label in variants(task) if not wanted or label in wanted]
    unit = "perplexity" if task.metric is perplexity else "accuracy"
    further = f" and {task.further.epochs} more" if task.further else ""
    result.write(
        "", f"{name}, {task.epochs} epochs{further}, {unit}; wanted: {task.wanted}"
    )
    result.write(
        f"  {'':<26}{unit:>10}  {'difference':>16}  {'sparsity':>8}  {'file':>9}"
    )
    runs = {}
    # No time is measured here, so that models may be trained side by side.
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(n_jobs, get_context("spawn")) as pool,
    ):
        each = [(name, seed, Path(folder) / f"{seed}.npz") for seed in range(n_seeds)]
        runs["dense"] = [*pool.map(run_dense, *zip(*each))]
        result.progress("trained: dense")
        waiting = {k: [pool.submit(run_variant, *of, k) for of in each] for k in labels}
        for label, some in waiting.items():
            runs[label] = [one.result() for one in some]
            result.progress(f"trained: {label}")
    for label, found in runs.items():
        gaps = [run.metric - dense.metric for run, dense in zip(found, runs["dense"])]
        error = statistics.stdev(gaps) / math.sqrt(n_seeds) if n_seeds > 1 else 0.0
        gap = f"{statistics.mean(gaps):+.2f} +- {error:.2f}"
        n_bytes = statistics.median(run.n_bytes for run in found)
        result.write(
            f"  {label:<26}{statistics.mean(run.metric for run in found):10.2f}"
            f"  {gap:>16}  {found[0].sparsity:8.1%}  {n_bytes / 1e3:6.1f} kB"
        )


if __name__ == "__main__":
    main()
