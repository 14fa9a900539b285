"""Two ways to make up for rounding, tried on a CNN that reads digits, in one process.

    error feedback    a gradient is sent with the rounding errors of the last one added
    differences       an activation is sent as its difference to the last value of the
                      same sample

The first adds errors of other samples, in the rows of the minibatch. The second needs a
copy of the activations of the whole training set, at both ends of each edge.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from benchmarks.common.results import Result
from benchmarks.message_dtypes.digits import BATCH, LEARNING_RATE
from benchmarks.message_dtypes.names import WHOLE
from divisible import Plan
from divisible.communication.narrowing import arrived
from examples.train import data
from examples.train.models.cnn import CNN

DTYPES = ("int8", "int4")


class Way(NamedTuple):
    """Dtype of the messages, and what makes up for its rounding."""

    dtype: str
    feeds_back: bool = False
    sends_differences: bool = False

    def __str__(self) -> str:
        words = [self.dtype]
        words += ["error feedback"] * self.feeds_back
        words += ["differences"] * self.sends_differences
        return ", ".join(words)


WAYS = (
    Way(WHOLE),
    *(
        Way(dtype, *remedy)
        for dtype in DTYPES
        for remedy in ((False, False), (True, False), (False, True))
    ),
)


class Edge:
    """An edge between two stages, as a layer.

    Args:
        way: How it sends.
        n_samples: Number of samples in the training set.

    Attributes:
        samples: Positions of the minibatch's samples in the training set; ``None`` for
            other samples.
    """

    def __init__(self, way: Way, n_samples: int) -> None:
        self.way, self._n_samples = way, n_samples
        self.samples: np.ndarray | None = None
        self._known: np.ndarray | None = None
        self._error: Any = 0.0

    def __call__(self, x: Any) -> chainer.Variable:
        """Returns activations as they arrive."""
        return _Crossing(self).apply((x,))[0]

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Sends activations."""
        if self.samples is None or not self.way.sends_differences:
            return arrived(x, self.way.dtype)
        if self._known is None:
            self._known = np.zeros((self._n_samples, *x.shape[1:]), x.dtype)
        known = self._known[self.samples]
        self._known[self.samples] = known + arrived(x - known, self.way.dtype)
        return self._known[self.samples]

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        """Sends gradients."""
        if not self.way.feeds_back:
            return arrived(gradient, self.way.dtype)
        wanted = gradient + self._error
        sent = arrived(wanted, self.way.dtype)
        self._error = wanted - sent
        return sent


class _Crossing(chainer.FunctionNode):
    def __init__(self, edge: Edge) -> None:
        super().__init__()
        self._edge = edge

    def forward(self, inputs: tuple) -> tuple:
        """Sends activations over the edge."""
        return (self._edge.forward(inputs[0]),)

    def backward(self, indexes: tuple, grad_outputs: tuple) -> tuple:
        """Sends gradients back over the edge."""
        return (chainer.as_variable(self._edge.backward(grad_outputs[0].array)),)


class Outcome(NamedTuple):
    """Accuracy on the test set in percent, and the mean loss of the last epoch."""

    accuracy: float
    loss: float


def train(seed: int, n_stages: int, way: Way, n_epochs: int) -> Outcome:
    """Trains the CNN, which is cut into stages of equally many layers."""
    training, test = data.load("digits")
    np.random.seed(seed)
    model, random = CNN(), np.random.RandomState(seed)
    cuts = Plan.uniform(len(model), n_stages).cuts[1:-1]
    edges = {cut: Edge(way, len(training.x)) for cut in cuts}
    optimizer = chainer.optimizers.Adam(LEARNING_RATE).setup(model)

    def output(x: np.ndarray, samples: np.ndarray | None) -> Any:
        h: Any = x
        for position, layer in enumerate(model):
            if position in edges:
                edges[position].samples = samples
                h = edges[position](h)
            h = layer(h)
        return h

    losses: list[float] = []
    for _ in range(n_epochs):
        order, losses = random.permutation(len(training.x)), []
        for i in range(0, len(order) - BATCH + 1, BATCH):
            some = order[i : i + BATCH]
            y = output(training.x[some], some)
            loss = F.softmax_cross_entropy(y, training.t[some])
            model.cleargrads()
            loss.backward()
            optimizer.update()
            losses.append(float(loss.array))
    with chainer.no_backprop_mode(), chainer.using_config("train", False):
        y = output(test.x, None)
    accuracy = 100 * float(F.accuracy(y, test.t).array)
    return Outcome(accuracy, statistics.mean(losses))


def write_feedback(
    result: Result, stages: Sequence[int], n_seeds: int, n_epochs: int
) -> None:
    """Trains in each way, and writes accuracies and losses beside those of float32."""
    result.write(
        f"CNN on digits, {n_epochs} epochs, minibatches of {BATCH}, Adam; {n_seeds}"
        f" seeds; accuracy on the test set in percent, and training loss of the last"
        f" epoch; means, and mean differences from {WHOLE} with the same seed (standard"
        f" error)"
    )
    for n_stages in stages:
        result.write("", f"{n_stages} stages{'accuracy':>22}{'loss':>23}")
        found: dict[Way, list[Outcome]] = {}
        for way in WAYS:
            found[way] = [
                train(seed, n_stages, way, n_epochs) for seed in range(n_seeds)
            ]
            columns = [
                _column([*zip(*found[way])][i], [*zip(*found[WAYS[0]])][i], digits)
                for i, digits in enumerate((2, 4))
            ]
            result.write(f"{way!s:21}{'   '.join(columns)}")


def _column(values: Sequence[float], whole: Sequence[float], digits: int) -> str:
    each = [a - b for a, b in zip(values, whole)]
    error = statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0
    return (
        f"{statistics.mean(values):6.{digits}f}"
        f" {statistics.mean(each):+.{digits}f} ({error:.{digits}f})"
    )
