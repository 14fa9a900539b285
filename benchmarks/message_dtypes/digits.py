"""The effects of narrow messages on a CNN that reads digits, in one process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import chainer
import chainer.functions as F
import numpy as np
from mpi4py import MPI

from benchmarks.common.results import Result
from benchmarks.common.rounded import Rounded
from benchmarks.message_dtypes.names import DTYPES, PAIRS, WHOLE
from divisible import Divisible, Plan
from divisible.communication.narrowing import Pair, arrived, pair_of
from examples.train import data
from examples.train.models.cnn import CNN
from pipeline import Pipeline

BATCH, MICROBATCHES, LEARNING_RATE = 64, 4, 1e-3
#: Steps before errors are measured, and numbers that a rotation mixes.
N_STEPS, BLOCK = 200, 32
ROTATED = "int4, rotated"


def rounding_model(seed: int, n_stages: int, pair: Pair) -> Divisible:
    """Returns the CNN, which rounds at the cuts of stages of equally many layers."""
    np.random.seed(seed)
    layers, found = CNN(), []
    cuts = set(Plan.uniform(len(layers), n_stages).cuts[1:-1])
    for position, layer in enumerate(layers):
        if position in cuts:
            found.append(Rounded(*pair))
        found.append(layer)
    return Divisible(*found)


def accuracy(seed: int, n_stages: int, pair: Pair, n_epochs: int) -> float:
    """Returns the accuracy on the test set in percent, after training."""
    train, test = data.load("digits")
    model = rounding_model(seed, n_stages, pair)
    random = np.random.RandomState(seed)
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=MICROBATCHES) as pipe:
        optimizer = pipe.setup(chainer.optimizers.Adam(LEARNING_RATE))
        for _ in range(n_epochs):
            order = random.permutation(len(train.x))
            for i in range(0, len(order) - BATCH + 1, BATCH):
                some = order[i : i + BATCH]
                pipe.step(train.x[some], train.t[some])
                optimizer.update()
        return 100 * pipe.evaluate(test.x, test.t)["accuracy"]


def write_accuracies(
    result: Result,
    stages: Sequence[int],
    n_seeds: int,
    n_epochs: int,
    points: float,
) -> None:
    """Trains with each dtype, and writes the accuracies beside those of float32."""
    result.write(
        f"CNN on digits, {n_epochs} epochs, minibatches of {BATCH} in {MICROBATCHES}"
        f" microbatches, Adam; {n_seeds} seeds; accuracy on the test set, and mean"
        f" difference from {WHOLE} with the same seed (standard error), in points"
    )
    for n_stages in stages:
        result.write("", f"{n_stages} stages    mean %   difference")
        found: dict[str, list[float]] = {}
        for dtype in (WHOLE, *DTYPES, *PAIRS):
            pair = pair_of(dtype)
            name = dtype if isinstance(dtype, str) else ", ".join(dtype)
            found[name] = [
                accuracy(seed, n_stages, pair, n_epochs) for seed in range(n_seeds)
            ]
            each = [a - b for a, b in zip(found[name], found[WHOLE])]
            error = statistics.stdev(each) / n_seeds**0.5 if n_seeds > 1 else 0.0
            mean, difference = statistics.mean(found[name]), statistics.mean(each)
            line = f"{name:11} {mean:7.2f}   {difference:+.2f} ({error:.2f})"
            if name == "int8":
                is_met = abs(difference) <= points
                line += f"   within {points:g}: {'met' if is_met else 'MISSED'}"
            result.write(line)


def hadamard(n: int) -> np.ndarray:
    """Returns the normalized Hadamard matrix of a power of two."""
    found = np.ones((1, 1), np.float32)
    while len(found) < n:
        found = np.block([[found, found], [found, -found]])
    return found / np.float32(np.sqrt(n))


def rotated(values: np.ndarray) -> np.ndarray:
    """Returns numbers as coded in 4 bits after a rotation of each block."""
    matrix = hadamard(BLOCK)
    blocks = np.pad(values, (0, -values.size % BLOCK)).reshape(-1, BLOCK)
    coded = arrived(blocks @ matrix, "int4")
    return (coded @ matrix).ravel()[: values.size]


def error(values: np.ndarray, name: str) -> float:
    """Returns the root mean squared error of coding, relative to the numbers."""
    found = rotated(values) if name == ROTATED else arrived(values, name)
    return float(np.linalg.norm(found - values) / np.linalg.norm(values))


def write_errors(result: Result) -> None:
    """Writes the errors of activations and gradients between all layers."""
    names = (*DTYPES, ROTATED)
    train, _ = data.load("digits")
    np.random.seed(0)
    model, random = CNN(), np.random.RandomState(0)
    optimizer = chainer.optimizers.Adam(LEARNING_RATE).setup(model)
    outputs = []
    for _ in range(N_STEPS):
        some = random.permutation(len(train.x))[:BATCH]
        h, outputs = chainer.Variable(train.x[some]), []
        for layer in model:
            h = layer(h)
            outputs.append(h)
        loss = F.softmax_cross_entropy(h, train.t[some])
        model.cleargrads()
        loss.backward(retain_grad=True)
        optimizer.update()
    result.write(
        f"CNN on digits after {N_STEPS} steps of {BATCH} samples: relative errors of"
        f" activations and gradients behind each layer",
        "",
        f"{'':24}" + "".join(f"{name:>15}" for name in names),
    )
    for what in ("activations", "gradients"):
        table = []
        for position, h in enumerate(outputs[:-1]):
            values = (h.array if what == "activations" else h.grad).ravel("K")
            table.append([error(values, name) for name in names])
            cells = "".join(f"{each:15.5f}" for each in table[-1])
            result.write(f"{what} behind {position:4}{'':3}{cells}")
        means = "".join(f"{each:15.5f}" for each in np.mean(table, axis=0))
        result.write(f"{what + ', mean':24}{means}")
