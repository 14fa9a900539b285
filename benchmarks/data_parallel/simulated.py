"""Replicas of a model that train in one process, with simulated exchanges.

The first steps are in float32 and common to all ways to exchange, as in the paper: what
differs then comes from the exchange alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from benchmarks.data_parallel.digits import Digits, SmallNet, accuracy, digits
from data_parallel import simulate_exchange

MOMENTUM = 0.9
#: Steps between two tests, and between two quantiles of Algorithm 1.
TEST_EVERY, QUANTILE_EVERY = 20, 100


class Way(NamedTuple):
    """A way to exchange gradients.

    Attributes:
        options: Options of `simulate_exchange`; ``None`` for the mean in float32.
        exempts: Whether parameters of one dimension stay in float32.
        feedback: Whether there is error feedback.
        ratio: Whether Algorithm 1 sends gradients relative to the weights; otherwise
            ones replace the weights.
        lr_factor: Factor of the learning rate.
    """

    options: dict[str, Any] | None = None
    exempts: bool = True
    feedback: bool = False
    ratio: bool = True
    lr_factor: float = 1.0


class Task(NamedTuple):
    """How replicas train.

    Attributes:
        n_replicas: How many there are.
        batch: Samples of all of them in a step.
        common: Steps that are in float32.
        steps: All steps.
        lr: The learning rate.
        normalizes: Whether the network has batch normalization.
    """

    n_replicas: int = 4
    batch: int = 64
    common: int = 100
    steps: int = 500
    lr: float = 0.01
    normalizes: bool = True


@dataclass
class Run:
    """The result of a run.

    Attributes:
        accuracies: Accuracies in percent, after every `TEST_EVERY` steps after the
            common ones.
        gains: Projection of the gradient on the exact mean, for each step.
        errors: Error relative to the norm of the exact mean, for each step.
        quantiles: Quantiles of Algorithm 1 by parameter, each time they were computed.
    """

    accuracies: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    quantiles: dict[str, list[float]] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The best accuracy."""
        return max(self.accuracies)


class Replicas:
    """Replicas of a network, which all have the same weights.

    Args:
        task: Settings of the training.
        seed: Seed of weights, data and order of samples.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.data: Digits = digits(seed)
        self.model, self.optimizer = _make(task, seed)
        random = np.random.RandomState(seed)
        orders = []
        while sum(map(len, orders)) < task.batch * task.steps:
            orders.append(random.permutation(len(self.data.x)))
        samples = np.concatenate(orders)[: task.batch * task.steps]
        self._batches = samples.reshape(task.steps, task.n_replicas, -1)

    def gradients(self, step: int) -> dict[str, list[np.ndarray]]:
        """Returns by parameter the gradients of all replicas."""
        found: dict[str, list[np.ndarray]] = {}
        for samples in self._batches[step]:
            self.model.cleargrads()
            scores = self.model(self.data.x[samples])
            F.softmax_cross_entropy(scores, self.data.t[samples]).backward()
            for name, parameter in self.model.namedparams():
                found.setdefault(name, []).append(parameter.grad.copy())
        return found

    def update(self, means: dict[str, np.ndarray]) -> None:
        """Updates the weights with the mean gradients."""
        for name, parameter in self.model.namedparams():
            parameter.grad = means[name]
        self.optimizer.update()

    def train_common(self) -> list[bytes]:
        """Takes the common steps, and returns a snapshot."""
        for step in range(self.task.common):
            self.update(exact_means(self.gradients(step)))
        files = []
        for state in (self.model, self.optimizer):
            file = io.BytesIO()
            chainer.serializers.save_npz(file, state)
            files.append(file.getvalue())
        return files

    def load(self, snapshot: list[bytes]) -> None:
        """Goes back to a snapshot."""
        self.model, self.optimizer = _make(self.task, self.seed)
        for file, state in zip(snapshot, (self.model, self.optimizer)):
            chainer.serializers.load_npz(io.BytesIO(file), state)

    def train(self, way: Way) -> Run:
        """Takes the other steps."""
        task, run = self.task, Run()
        self.optimizer.lr = task.lr * way.lr_factor
        exchange = _Exchange(way, run)
        for step in range(task.common, task.steps):
            gradients = self.gradients(step)
            exact = exact_means(gradients)
            means = exact
            if way.options is not None:
                weights = {n: p.array for n, p in self.model.namedparams()}
                means = exchange.means(gradients, weights)
            _compare(means, exact, run)
            self.update(means)
            if (step + 1) % TEST_EVERY == 0:
                run.accuracies.append(accuracy(self.model, self.data))
        return run


class _Exchange:
    """Exchanges of one run, and their state from one to the next."""

    def __init__(self, way: Way, run: Run) -> None:
        self._way, self._run, self._n = way, run, 0
        self._residuals: dict[str, list[np.ndarray]] = {}
        self._q: dict[str, float | None] = {}

    def means(
        self, gradients: dict[str, list[np.ndarray]], weights: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        way, is_new = self._way, self._n % QUANTILE_EVERY == 0
        renewal = self._n // QUANTILE_EVERY
        self._n += 1
        found = {}
        for name, each in gradients.items():
            if way.exempts and each[0].ndim < 2:
                found[name] = exact_mean(each)
                continue
            options = dict(way.options)
            is_oyama2017 = options.get("strategy") == "oyama2017"
            if is_oyama2017:
                options["array"], options["renewal"] = name, renewal
                options["weights"] = weights[name]
                if not way.ratio:
                    options["weights"] = np.ones_like(weights[name])
                options["q"] = None if is_new else self._q[name]
            if way.feedback:
                zeros = [np.zeros_like(gradient) for gradient in each]
                options["residuals"] = self._residuals.get(name, zeros)
            result = simulate_exchange(each, **options)
            found[name] = result.mean
            if way.feedback:
                self._residuals[name] = result.residuals
            if is_oyama2017 and is_new:
                self._q[name] = result.q
                self._run.quantiles.setdefault(name, []).append(result.q)
        return found


def exact_mean(gradients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean in float32."""
    return np.mean(gradients, axis=0, dtype=np.float32)


def exact_means(gradients: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the means of all parameters."""
    return {name: exact_mean(each) for name, each in gradients.items()}


def _compare(
    means: dict[str, np.ndarray], exact: dict[str, np.ndarray], run: Run
) -> None:
    a, b = (np.concatenate([g[n].ravel() for n in exact]) for g in (means, exact))
    square = float(b @ b) or 1.0
    run.gains.append(float(a @ b) / square)
    run.errors.append(float(np.linalg.norm(a - b)) / square**0.5)


def _make(task: Task, seed: int) -> tuple[chainer.Chain, chainer.Optimizer]:
    np.random.seed(seed)
    model = SmallNet(task.normalizes)
    return model, chainer.optimizers.MomentumSGD(task.lr, MOMENTUM).setup(model)
