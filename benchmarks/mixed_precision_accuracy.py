"""Accuracy in mixed precision against float32, on handwritten digits.

    OMP_NUM_THREADS=1 python -m benchmarks.mixed_precision_accuracy

The claims of Naruse's slides (2017), with a multi-layer perceptron and a small
convolutional network, several seeds each. A seed gives weights, order of samples and
split of the data, so that the modes differ in nothing else. The modes are the classes
of the slides' table, by the types of numbers, sums of products and update:

    FP32              numbers float32, sums float32, update float32
    FP16              numbers float16, sums float16, update float16 or float32
    mixed             numbers float16, sums float32, update float16 or float32

and with them each technique of the slides: float32 master weights, loss scaling,
momentum SGD that is modified for float16, the types of NVCaffe's example, and LARS with
a loss that is a sum. The scale is 1000, or 65536 for the last task.

In the third task steps are small beside the weights, so that float16 rounds them away.

The fourth is made so that gradients vanish in float16, as those of activations do in
the slides' SSD detector. The loss is divided by 2^20, as if it were the mean over the
pixels of a large image of which one matters. The learning rate is multiplied by as
much. In exact arithmetic nothing changes. The sum in place of this mean is what the
slides do for translation.

These are the accuracies to expect of a GPU with Tensor Cores, and for FP16 of one
without; the times are not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from sklearn.datasets import load_digits

from benchmarks.common import quick
from benchmarks.common.results import Result, command, machine, new_file
from divisible import Divisible
from mixed_precision import (
    LARS,
    ActivationGradients,
    DynamicLossScale,
    GradientReport,
    LayerTypes,
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
    scale: float = 1000.0


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


class Mode(NamedTuple):
    """A way of training: techniques of the slides.

    Attributes:
        slide: Words of the slides for it.
        optimizer: Makes the optimizer for a task.
        is_half: Whether numbers are float16.
        keep: Types of layers that differ, as for ``to_float16``.
        sums: Whether the loss is a sum, where the task divides it.
    """

    slide: str
    optimizer: Callable[[Task], chainer.Optimizer]
    is_half: bool = True
    keep: dict[type, LayerTypes] | None = None
    sums: bool = False


def momentum(task: Task) -> chainer.Optimizer:
    """Makes Chainer's momentum SGD."""
    return chainer.optimizers.MomentumSGD(task.lr)


def mixed(loss_scale: float | None = None) -> Callable[[Task], chainer.Optimizer]:
    """Returns what makes momentum SGD in float32, with the task's or another scale."""
    return lambda task: MixedPrecision(
        momentum(task), loss_scale=loss_scale or task.scale
    )


def modified(task: Task) -> chainer.Optimizer:
    """Makes momentum SGD for float16, with the task's scale."""
    return MixedPrecision(MomentumSGD16(task.lr), loss_scale=task.scale)


def dynamic(task: Task) -> chainer.Optimizer:
    """Makes momentum SGD in float32, with a scale that adapts."""
    return MixedPrecision(momentum(task), loss_scale=DynamicLossScale())


def lars(task: Task) -> chainer.Optimizer:
    """Makes LARS, with the rate of the loss that is not divided, and a scale of 512."""
    optimizer = LARS(LARS_RATE * task.lr / task.divisor, eta=LARS_ETA)
    return MixedPrecision(optimizer, loss_scale=512)


def sums_in_float16(**math: str) -> dict[type, LayerTypes]:
    """Returns types with sums in float16 for all layers that have products."""
    return dict.fromkeys((L.Linear, L.Convolution2D), LayerTypes(**math))


FP16 = sums_in_float16(forward_math="float16", backward_math="float16")
NVCAFFE = sums_in_float16(forward_math="float16", backward_math="float32")
#: Ratio of the learning rate of LARS to that of momentum SGD; its trust coefficient.
LARS_RATE, LARS_ETA = 5.0, 0.005
BASE = "FP32"

#: Options of a quick run. The accuracy is that of the last three epochs.
QUICK = {"seeds": 1, "epochs": 3}

#: The classes of training of the slides' table, and with them each technique.
MODES = {
    BASE: Mode("class FP32", momentum, is_half=False),
    "FP16": Mode("class FP16, update in FP16", momentum, keep=FP16),
    "FP16 + master": Mode("class FP16, update in FP32", mixed(1), keep=FP16),
    "FP16 + master, scale": Mode("the same, loss scaling", mixed(), keep=FP16),
    "FP16 + modified SGD, scale": Mode(
        "modified momentum SGD: FP16 (scaling=1000)", modified, keep=FP16
    ),
    "NVCaffe + modified SGD, scale": Mode(
        "NVIDIA Caffe: forward_math FLOAT16, backward_math FLOAT",
        modified,
        keep=NVCAFFE,
    ),
    "mixed": Mode("class mixed, update in FP16", momentum),
    "mixed + master": Mode("class mixed, update in FP32", mixed(1)),
    "mixed + master, scale": Mode("the same, loss scaling", mixed()),
    "mixed + master, dynamic scale": Mode("not on a slide", dynamic),
    "mixed + modified SGD, scale": Mode(
        "modified momentum SGD: Tensor cores (scaling=1000)", modified
    ),
    "mixed + LARS, sum, scale 512": Mode(
        "change of the loss function, and LARS", lars, sums=True
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
    way = MODES[mode]
    dtype = np.float16 if way.is_half else np.float32
    if way.is_half:
        to_float16(model, keep=way.keep)
    optimizer = way.optimizer(task).setup(model)
    divisor = 1.0 if way.sums else task.divisor
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
                (loss / divisor).backward(loss_scale=optimizer._loss_scale)
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
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=new_file, help="where to draw the curves")
    name = "mixed_precision_accuracy"
    arguments = quick.parse(parser, name, QUICK)
    # All others are compared with it.
    modes = list(dict.fromkeys((BASE, *arguments.modes)))
    result = Result(name, arguments.output)
    result.write(
        command("OMP_NUM_THREADS=1"),
        machine("numpy", "numba", "chainer"),
        f"{arguments.seeds} seeds, {arguments.epochs} epochs, test accuracy in percent,"
        " mean +- standard deviation;",
        f"difference to {BASE}: mean over the seeds of the last epochs' accuracies",
        "",
        *(f"  {name:<32}{MODES[name].slide}" for name in modes),
    )
    curves: dict[str, dict[str, list[Run]]] = {}
    for name in arguments.tasks:
        curves[name] = measure(result, name, modes, arguments.seeds, arguments.epochs)
    result.save()
    if arguments.plot:
        plot(curves, arguments.plot)


def measure(
    result: Result, name: str, modes: Sequence[str], n_seeds: int, n_epochs: int
) -> dict[str, list[Run]]:
    """Trains one task in some modes, and writes its table and curves."""
    task = TASKS[name]
    runs: dict[str, list[Run]] = {mode: [] for mode in modes}
    for seed in range(n_seeds):
        for mode in modes:
            runs[mode].append(train(task, mode, seed, n_epochs))
            result.progress(f"{name}, {mode}, seed {seed + 1} of {n_seeds}")
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
    result.write(f"  {'epoch':<32}{header}   last 3 epochs   difference  seconds")
    base = [last(run) for run in runs[BASE]]
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
            f"  {mode:<32}{curve}  {statistics.mean(final):6.2f} +- {spread:4.2f}"
            f"  {difference:+10.2f} {seconds:8.1f}"
        )
    return runs


def last(run: Run) -> float:
    """Returns the mean accuracy of the last three epochs."""
    return statistics.mean(run.accuracies[-3:])


def style_of(mode: str) -> dict[str, Any]:
    """Returns how a mode is drawn: dashed where some sums are float16.

    The base is a wide, pale line, which shows beside the lines that lie on it.
    """
    if mode == BASE:
        return {"color": "black", "linestyle": "-", "linewidth": 6, "alpha": 0.25}
    color = f"C{list(MODES).index(mode) % 10}"
    return {"color": color, "linestyle": "--" if MODES[mode].keep else "-"}


def plot(curves: dict[str, dict[str, list[Run]]], path: Path) -> None:
    """Draws accuracies and losses over the epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(curves) + 3, 7), layout="constrained")
    axes = figure.subplots(2, len(curves), squeeze=False)
    for column, (name, runs) in enumerate(curves.items()):
        for mode, each in runs.items():
            epochs = range(1, len(each[0].losses) + 1)
            for row, values in enumerate(("accuracies", "losses")):
                mean = np.mean([getattr(run, values) for run in each], axis=0)
                axes[row, column].plot(epochs, mean, label=mode, **style_of(mode))
        for each in axes[:, column]:
            each.xaxis.get_major_locator().set_params(integer=True)
        axes[0, column].set_title(name)
        axes[0, column].set_ylabel("test accuracy [%]")
        axes[1, column].set_ylabel("training loss")
        axes[1, column].set_yscale("log")
        axes[1, column].set_xlabel("epoch")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
