"""Accuracy in mixed precision against float32, on handwritten digits.

    OMP_NUM_THREADS=1 python -m benchmarks.mixed_precision_accuracy

The claims of Naruse's slides, with a multi-layer perceptron and a small convolutional
network, several seeds each. A seed gives weights, order of samples and split of the
data, so that the modes differ in nothing else:

    float32           Chainer as it is
    float16 only      weights, gradients and update in float16, no scale
    + master          float32 master weights, scale 1
    + static scale    and a scale of 1024, or 65536 for the last task
    + dynamic scale   and the default DynamicLossScale
    MomentumSGD16     no master, dynamic scale

In the third task steps are small beside the weights, so that float16 rounds them away.

The fourth is made so that gradients vanish in float16, as those of activations do in
the slides' SSD detector. The loss is divided by 2^20, as if it were the mean over the
pixels of a large image of which one matters. The learning rate is multiplied by as
much. In exact arithmetic nothing changes.

Products are computed in float32 and rounded once, so that these are the accuracies to
expect of a GPU with Tensor Cores; the times are not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from sklearn.datasets import load_digits

from benchmarks.common.results import Result, command, machine
from divisible import Divisible
from mixed_precision import (
    ActivationGradients,
    DynamicLossScale,
    GradientReport,
    MixedPrecision,
    MomentumSGD16,
    float32_loss,
    to_float16,
)

N_PIXELS = 2.0**20
BATCH = 64


class Task(NamedTuple):
    """A model, how fast it learns, what its loss is divided by, and a good scale."""

    make: Callable[[], Divisible]
    lr: float
    divisor: float = 1.0
    scale: float = 1024.0


def cnn() -> Divisible:
    """Makes a convolutional network with batch normalization."""
    return Divisible(
        L.Convolution2D(1, 16, 3, pad=1, nobias=True),
        L.BatchNormalization(16),
        F.relu,
        L.Convolution2D(16, 32, 3, stride=2, pad=1, nobias=True),
        L.BatchNormalization(32),
        F.relu,
        L.Linear(32 * 4 * 4, 10),
    )


def flat(x: Any) -> Any:
    """Flattens images."""
    return F.reshape(x, (len(x), -1))


def mlp() -> Divisible:
    """Makes a perceptron of four layers."""
    layers: list[Any] = [flat, L.Linear(64, 128), F.relu]
    for _ in range(2):
        layers += [L.Linear(128, 128), F.relu]
    return Divisible(*layers, L.Linear(128, 10))


TASKS = {
    "MLP": Task(mlp, 0.02),
    "CNN": Task(cnn, 0.02),
    "small steps": Task(mlp, 0.0005),
    "vanishing": Task(mlp, 0.02 * N_PIXELS, N_PIXELS, 2.0**16),
}


def momentum(task: Task) -> chainer.Optimizer:
    """Chainer's momentum SGD."""
    return chainer.optimizers.MomentumSGD(task.lr)


def modified(task: Task) -> chainer.Optimizer:
    """Momentum SGD for float16."""
    return MomentumSGD16(task.lr)


MODES: dict[str, Callable[[Task], chainer.Optimizer]] = {
    "float32": momentum,
    "float16 only": momentum,
    "+ master": lambda task: MixedPrecision(momentum(task), loss_scale=1),
    "+ static scale": lambda task: MixedPrecision(
        momentum(task), loss_scale=task.scale
    ),
    "+ dynamic scale": lambda task: MixedPrecision(
        momentum(task), loss_scale=DynamicLossScale()
    ),
    "MomentumSGD16": lambda task: MixedPrecision(
        modified(task), loss_scale=DynamicLossScale()
    ),
}


class Run(NamedTuple):
    """Test accuracies after every epoch, and losses, of one seed."""

    accuracies: list[float]
    losses: list[float]
    seconds: float


def train(task: Task, mode: str, seed: int, n_epochs: int) -> Run:
    """Trains one model."""
    np.random.seed(seed)
    model = task.make()
    dtype = np.float32 if mode == "float32" else np.float16
    if dtype == np.float16:
        to_float16(model)
    optimizer = MODES[mode](task).setup(model)
    x_train, t_train, x_test, t_test = digits(seed, dtype)
    lossfun, accfun = map(float32_loss, (F.softmax_cross_entropy, F.accuracy))
    order = np.random.RandomState(seed)
    accuracies, losses = [], []
    start = time.perf_counter()
    for epoch in range(n_epochs):
        if epoch == n_epochs * 2 // 3:
            optimizer.lr *= 0.1
        total = 0.0
        shuffled = order.permutation(len(x_train))
        for begin in range(0, len(shuffled), BATCH):
            batch = shuffled[begin : begin + BATCH]
            # A model that has diverged continues with infinities.
            with np.errstate(all="ignore"):
                loss = lossfun(model(x_train[batch]), t_train[batch])
                total += float(loss.array) * len(batch)
                model.cleargrads()
                (loss / task.divisor).backward(loss_scale=optimizer._loss_scale)
                optimizer.update()
        losses.append(total / len(x_train))
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            with np.errstate(all="ignore"):
                accuracy = accfun(model(x_test), t_test).array
            accuracies.append(100 * float(accuracy))
    return Run(accuracies, losses, time.perf_counter() - start)


def digits(seed: int, dtype: Any) -> tuple:
    """Returns images and classes, for training and for testing."""
    x, t = load_digits(return_X_y=True)
    x, t = (x / 16).astype(dtype).reshape(-1, 1, 8, 8), t.astype(np.int32)
    order = np.random.RandomState(1000 + seed).permutation(len(x))
    train, test = order[:-450], order[-450:]
    return x[train], t[train], x[test], t[test]


def vanished(task: Task, scale: float) -> dict[str, float]:
    """Returns what float16 would lose of a float32 model's activation gradients."""
    np.random.seed(0)
    model = task.make()
    x, t, _, _ = digits(0, np.float32)
    report = GradientReport(scale)
    loss = F.softmax_cross_entropy(model(x[:BATCH]), t[:BATCH]) / task.divisor
    model.cleargrads()
    with ActivationGradients(report):
        loss.backward()
    return report.total("activations").shares(scale)


def main() -> None:
    """Trains every task in every mode with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path, help="where to draw the curves")
    arguments = parser.parse_args()
    result = Result("mixed_precision_accuracy", arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{arguments.seeds} seeds, {arguments.epochs} epochs, test accuracy in percent,"
        " mean +- standard deviation;",
        "difference to float32: mean over the seeds of the last epochs' accuracies",
    )
    curves: dict[str, dict[str, list[Run]]] = {}
    for name in arguments.tasks:
        curves[name] = measure(result, name, arguments.seeds, arguments.epochs)
    result.save()
    if arguments.plot:
        plot(curves, arguments.plot)


def measure(
    result: Result, name: str, n_seeds: int, n_epochs: int
) -> dict[str, list[Run]]:
    """Trains one task in every mode, and writes its table and curves."""
    task = TASKS[name]
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for seed in range(n_seeds):
        for mode in MODES:
            runs[mode].append(train(task, mode, seed, n_epochs))
    result.write("", f"{name}, learning rate {task.lr:g}, loss / {task.divisor:g}")
    for scale in (1, task.scale):
        shares = vanished(task, scale)
        result.write(
            f"  gradients of activations at first, times {scale:g}:"
            f" zero {shares['zero']:.1%}, lost in float16"
            f" {shares['below_subnormal']:.1%}, not normal {shares['below_normal']:.1%}"
        )
    shown = sorted({0, *range(4, n_epochs, 5), n_epochs - 1})
    header = "".join(f"{epoch + 1:>8}" for epoch in shown)
    result.write(f"  {'epoch':<16}{header}   last 3 epochs   difference  seconds")
    base = [last(run) for run in runs["float32"]]
    for mode, each in runs.items():
        curve = "".join(
            f"{statistics.mean(run.accuracies[epoch] for run in each):8.2f}"
            for epoch in shown
        )
        final = [last(run) for run in each]
        difference = statistics.mean(a - b for a, b in zip(final, base))
        spread = statistics.stdev(final) if n_seeds > 1 else 0.0
        seconds = statistics.mean(run.seconds for run in each)
        result.write(
            f"  {mode:<16}{curve}  {statistics.mean(final):6.2f} +- {spread:4.2f}"
            f"  {difference:+10.2f} {seconds:8.1f}"
        )
    return runs


def last(run: Run) -> float:
    """Returns the mean accuracy of the last three epochs."""
    return statistics.mean(run.accuracies[-3:])


def plot(curves: dict[str, dict[str, list[Run]]], path: Path) -> None:
    """Draws accuracies and losses over the epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(curves), 7), layout="constrained")
    axes = figure.subplots(2, len(curves), squeeze=False)
    for column, (name, runs) in enumerate(curves.items()):
        for mode, each in runs.items():
            epochs = range(1, len(each[0].losses) + 1)
            for row, values in enumerate(("accuracies", "losses")):
                mean = np.mean([getattr(run, values) for run in each], axis=0)
                axes[row, column].plot(epochs, mean, label=mode)
        axes[0, column].set_title(name)
        axes[0, column].set_ylabel("test accuracy [%]")
        axes[1, column].set_ylabel("training loss")
        axes[1, column].set_yscale("log")
        axes[1, column].set_xlabel("epoch")
    axes[0, 0].legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
