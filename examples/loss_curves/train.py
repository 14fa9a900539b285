"""Draws the training loss of serial and of pipeline training into one picture.

    mpiexec -n 4 python examples/loss_curves/train.py
    mpiexec -n 4 python examples/loss_curves/train.py --units 3072 --dataset cifar10

This is the check of section 4 of Takisawa et al.: four fully connected layers, the
first of 3,072 inputs, learn the same with and without a pipeline. The second command
uses the paper's size and data. Both models get the same minibatches: the undivided one
on rank 0, by plain Chainer, and the divided one on all ranks.

A pipeline adds the same numbers in another order. A second serial training, with the
samples of each minibatch in reverse order, shows how much such rounding matters after
some hundred steps. With --dtype float64 the differences almost vanish.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import Pipeline, abort_on_error

N_INPUTS = 3072  # 3 channels of 32 x 32 pixels
# In single precision a ReLU occasionally falls on the other side of zero.
TOLERANCE = {"float32": 0.02, "float64": 1e-9}

comm = MPI.COMM_WORLD


class Network(Divisible):
    """Four fully connected layers."""

    def __init__(self, n_units: int) -> None:
        self.append(L.Linear(N_INPUTS, n_units))
        self.append(F.relu)
        for _ in range(2):
            self.append(L.Linear(n_units, n_units))
            self.append(F.relu)
        self.append(L.Linear(n_units, 10))


def main() -> None:
    """Trains both ways, prints the difference and draws the curves."""
    abort_on_error()
    args = parse_arguments()
    x, t = load(args.dataset)
    # Before the training, not after it.
    os.makedirs(args.out, exist_ok=True)

    chainer.config.dtype = np.dtype(args.dtype)
    x = x.astype(args.dtype)
    np.random.seed(args.seed)
    model = Network(args.units)
    if comm.rank == 0:
        serial = Serial(model, args.learning_rate)
        reordered = Serial(model, args.learning_rate)
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    del model
    optimizer = chainer.optimizers.SGD(args.learning_rate).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=args.microbatches)

    losses = []
    shuffle = np.random.RandomState(args.seed)
    for step in range(1, args.steps + 1):
        batch = shuffle.choice(len(x), args.batchsize, replace=False)
        losses.append(pipe.step(x[batch], t[batch])["loss"])
        optimizer.update()
        if comm.rank == 0:
            serial.step(x[batch], t[batch])
            # The same minibatch, with its samples in another order.
            reordered.step(x[batch[::-1]], t[batch[::-1]])
            if step == 1 or step % 50 == 0 or step == args.steps:
                print(
                    f"step {step:4d}: pipeline {losses[-1]:.6f},"
                    f" serial {serial.losses[-1]:.6f}",
                    flush=True,
                )

    largest = None
    if comm.rank == 0:
        difference = relative_difference(losses, serial.losses)
        rounding = relative_difference(reordered.losses, serial.losses)
        largest = difference.max()
        path = os.path.join(args.out, "loss_curves.png")
        title = f"{args.dataset}, 4 layers, {args.units} units, {comm.size} ranks"
        draw(losses, serial.losses, difference, rounding, title, path)
        print(f"largest relative difference, pipeline to serial: {largest:.1e}")
        print(f"the same for samples in another order, serial: {rounding.max():.1e}")
        print(f"curves drawn in {path}", flush=True)
    if not comm.bcast(largest) <= TOLERANCE[args.dtype]:
        sys.exit(1)


class Serial:
    """Serial training by plain Chainer, of a copy of the model."""

    def __init__(self, model: Divisible, learning_rate: float) -> None:
        self._model = model.copy(mode="copy")
        self._optimizer = chainer.optimizers.SGD(learning_rate).setup(self._model)
        self.losses: list[float] = []

    def step(self, x: np.ndarray, t: np.ndarray) -> None:
        """Trains on one minibatch and records its loss."""
        loss = F.softmax_cross_entropy(self._model(x), t)
        self._model.cleargrads()
        loss.backward()
        self._optimizer.update()
        self.losses.append(float(loss.array))


def relative_difference(
    losses: Sequence[float], expected: Sequence[float]
) -> np.ndarray:
    """Returns the difference at each step, as a part of the expected loss."""
    return np.abs(np.array(losses) - expected) / expected


def draw(
    losses: Sequence[float],
    serial_losses: Sequence[float],
    difference: np.ndarray,
    rounding: np.ndarray,
    title: str,
    path: str,
) -> None:
    """Draws both curves and, below, how far they are apart."""
    # Matplotlib is slow to load, and only one rank draws.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    steps = np.arange(1, len(losses) + 1)
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7.5, 6), gridspec_kw={"height_ratios": (5, 3)}
    )
    # A thin line on a broad one: both are seen where they coincide.
    above.plot(steps, serial_losses, color="#9ecae1", linewidth=6, label="serial")
    above.plot(steps, losses, color="#b30000", linewidth=1.2, label="pipeline")
    above.set_title(title)
    above.set_ylabel("training loss of the minibatch")
    above.set_ylim(bottom=0)
    # Zero has no place on a logarithmic axis.
    below.semilogy(
        steps,
        np.where(rounding > 0, rounding, np.nan),
        color="#3182bd",
        linewidth=1,
        label="serial, samples in reverse order",
    )
    below.semilogy(
        steps,
        np.where(difference > 0, difference, np.nan),
        color="#b30000",
        linestyle="none",
        marker=".",
        markersize=4,
        label="pipeline",
    )
    below.set_ylabel("relative difference\nfrom serial")
    below.set_xlabel("step")
    above.legend()
    below.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2, frameon=False)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training images, 3,072 numbers each, and their classes."""
    if name == "cifar10":
        train, _ = chainer.datasets.get_cifar10(ndim=1)
        return chainer.dataset.concat_examples(train)
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    # Each pixel becomes 4 x 4, the one channel three.
    images = images.repeat(3, axis=1).repeat(4, axis=2).repeat(4, axis=3)
    return images.reshape(-1, N_INPUTS), classes.astype(np.int32)


def parse_arguments() -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dataset", choices=("digits", "cifar10"), default="digits")
    add("--units", type=int, default=512, help="of each layer; the paper has 3072")
    add("--steps", type=int, default=200, help="number of minibatches")
    add("--batchsize", type=int, default=64)
    add("--microbatches", type=int, default=4)
    add("--learning-rate", type=float, default=0.01)
    add("--dtype", choices=TOLERANCE, default="float32")
    add("--seed", type=int, default=0)
    add("--out", default="result", help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
