"""Accuracy with products in bfloat16 against float32.

    OMP_NUM_THREADS=1 python -m benchmarks.bfloat16_accuracy

A perceptron and a convolutional network on handwritten digits, an LSTM that reads the
same digits row by row, and the language model of the examples, several seeds each. A
seed gives weights, order of samples and split of the data, so that the modes differ in
nothing else:

    float32          products and what waits for the backward in float32
    products         operands of products rounded to bfloat16
    held             what waits for the backward held in bfloat16, with --held
    products, held   both, with --held

Each model is trained by a pipeline on one rank, in two microbatches by GPipe, in which
microbatches wait for their backward. The metrics are
the test accuracy in percent and the test perplexity, and the differences are those of
the same seed, with their standard error.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI

import chainer_kernels
from benchmarks.common import quick
from benchmarks.common.results import Result, command, machine
from benchmarks.compression import accuracy, perplexity, said, words
from benchmarks.mixed_precision_accuracy import BATCH, cnn, digits, mlp
from chainer_kernels import providers
from divisible import Divisible
from examples.language_model.model import LanguageModel
from pipeline import Pipeline

N_MICROBATCHES = 2
#: Steps of each seed in a quick run.
FEW = 4


class Rows(chainer.Chain):
    """Reads images row by row, and returns what it remembers after the last row.

    Args:
        n_pixels: Number of pixels in a row.
        n_units: Number of units of the LSTM.
    """

    def __init__(self, n_pixels: int, n_units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.lstm = L.NStepLSTM(1, n_pixels, n_units, 0.0)

    def forward(self, x: Any) -> chainer.Variable:
        """Takes (N, 1, rows, pixels), and returns (N, units)."""
        h, _, _ = self.lstm(None, None, F.separate(x[:, 0], axis=0))
        return h[0]


def rows() -> Divisible:
    """Makes a network that reads digits row by row."""
    return Divisible(Rows(8, 64), L.Linear(64, 10))


class Task(NamedTuple):
    """A model and its data.

    Attributes:
        make: Makes the model.
        data: Function from a seed to inputs and targets for training and test.
        optimizer: Makes the optimizer.
        batch: Samples of a minibatch.
        epochs: Number of epochs.
        metric: Metric of the outputs for the test set and their targets.
        wanted: Largest difference that is wanted, in points, or in parts of float32's.
        is_relative: Whether differences are in parts of float32's.
    """

    make: Callable[[], Divisible]
    data: Callable[[int], tuple]
    optimizer: Callable[[], chainer.Optimizer]
    batch: int
    epochs: int
    metric: Callable[[Any, Any], float]
    wanted: float
    is_relative: bool = False


def _digits(seed: int) -> tuple:
    return digits(seed, np.float32)


def _momentum() -> chainer.Optimizer:
    return chainer.optimizers.MomentumSGD(0.02)


def _adam() -> chainer.Optimizer:
    return chainer.optimizers.Adam(0.003)


TASKS = {
    "MLP": Task(mlp, _digits, _momentum, BATCH, 30, accuracy, 0.2),
    "CNN": Task(cnn, _digits, _momentum, BATCH, 30, accuracy, 0.2),
    "LSTM": Task(rows, _digits, _adam, BATCH, 30, accuracy, 0.2),
    "language model": Task(
        lambda: LanguageModel(1000, 64, 3, dropout=0.2),
        words,
        _adam,
        32,
        8,
        perplexity,
        0.005,
        True,
    ),
}
#: Dtype of products, and arguments of the pipeline, by mode.
BASE = "float32"
MODES = {
    BASE: ("float32", {}),
    "products": ("bfloat16", {}),
    "held": ("float32", {"hold_dtype": "bfloat16"}),
    "products, held": ("bfloat16", {"hold_dtype": "bfloat16"}),
}


class Run(NamedTuple):
    """Metric of the test set, and seconds of the CPU for the training."""

    metric: float
    seconds: float


def train(task: Task, mode: str, seed: int, most_steps: int | None = None) -> Run:
    """Trains one model.

    Args:
        task: Model and data.
        mode: One of `MODES`.
        seed: Seed of weights, order, dropout and split.
        most_steps: Number of steps after which training ends; ``None`` for all epochs.
    """
    np.random.seed(seed)
    dtype, options = MODES[mode]
    model = task.make()
    pipe = Pipeline(
        model,
        MPI.COMM_SELF,
        n_microbatches=N_MICROBATCHES,
        schedule="gpipe",
        seed=seed,
        **options,
    )
    optimizer = pipe.setup(task.optimizer())
    x, t, x_test, t_test = task.data(seed)
    order = np.random.RandomState(seed)
    rate = "alpha" if hasattr(optimizer, "alpha") else "lr"
    n_steps = 0
    start = time.process_time()
    with chainer_kernels.products(dtype):
        for epoch in range(task.epochs):
            if epoch == task.epochs * 2 // 3:
                setattr(optimizer, rate, 0.1 * getattr(optimizer, rate))
            shuffled = order.permutation(len(x))
            for begin in range(0, len(x), task.batch):
                if n_steps == most_steps:
                    break
                batch = shuffled[begin : begin + task.batch]
                pipe.step(x[batch], t[batch])
                optimizer.update()
                n_steps += 1
        seconds = time.process_time() - start
        metric = task.metric(said(model, x_test), t_test)
    pipe.close()
    return Run(metric, seconds)


def main() -> None:
    """Trains every task in every mode with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--seeds", type=int, default=5)
    add("--held", action="store_true", help="also hold what waits in bfloat16")
    add("--output", type=Path)
    arguments = quick.parse(
        parser, "bfloat16_accuracy", {"seeds": 2}, text=f"{FEW} steps of each seed"
    )
    modes = [mode for mode in MODES if arguments.held or "held" not in mode]
    n_seeds, most_steps = arguments.seeds, FEW if arguments.quick else None
    result = Result("bfloat16_accuracy", arguments.output)
    how = providers.bfloat16_instructions() or "rounding, without instructions"
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{n_seeds} seeds; bfloat16 by {how}; difference to {BASE}: mean of the same"
        f" seeds' differences +- standard error",
    )
    for name in arguments.tasks:
        measure(result, name, modes, n_seeds, most_steps)
    result.save()


def measure(
    result: Result,
    name: str,
    modes: Sequence[str],
    n_seeds: int,
    most_steps: int | None,
) -> None:
    """Trains one task in some modes, and writes its table."""
    task = TASKS[name]
    runs = {
        mode: [train(task, mode, seed, most_steps) for seed in range(n_seeds)]
        for mode in modes
    }
    unit = "perplexity" if task.is_relative else "accuracy"
    wanted = f"{task.wanted:.1%}" if task.is_relative else f"{task.wanted:g} points"
    result.write("", f"{name}, {task.epochs} epochs, {unit}; wanted: {wanted}")
    result.write(f"  {'':<16}{unit:>16}  {'difference':>18}  CPU seconds")
    for mode, each in runs.items():
        metrics = [run.metric for run in each]
        differences = [
            run.metric / base.metric - 1
            if task.is_relative
            else run.metric - base.metric
            for run, base in zip(each, runs[BASE])
        ]
        result.write(
            f"  {mode:<16}{_with_spread(metrics):>16}"
            f"  {_with_error(differences, task.is_relative):>18}"
            f"  {statistics.mean(run.seconds for run in each):11.1f}"
        )


def _with_spread(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} +- {spread:.2f}"


def _with_error(values: Sequence[float], is_relative: bool) -> str:
    """Returns a mean and its standard error, in percent or in points."""
    factor, unit = (100, " %") if is_relative else (1, "")
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0
    return f"{factor * statistics.mean(values):+.2f} +- {factor * error:.2f}{unit}"


if __name__ == "__main__":
    main()
