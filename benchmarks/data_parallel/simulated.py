"""Replicas of a model that train in one process, with simulated exchanges.

The first steps are in float32 and common to all ways to exchange, as in the paper: what
differs then comes from the exchange alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from chainer.optimizer_hooks import WeightDecay

from benchmarks.data_parallel.digits import Digits, SmallNet, accuracy, digits
from benchmarks.data_parallel.replica_gradients import ReplicaGradients
from data_parallel import simulate_exchange

#: Gradients of all replicas by parameter, the replica as the first axis.
Gradients = dict[str, Sequence[np.ndarray]]
MOMENTUM = 0.9
#: Steps between two tests, and between two quantiles of Algorithm 1.
TEST_EVERY, QUANTILE_EVERY = 20, 100


class Way(NamedTuple):
    """A way to exchange gradients.

    Attributes:
        options: Options of `simulate_exchange`; ``None`` for the mean in float32.
        exempts: Whether parameters of one dimension stay in float32.
        feedback: Whether there is error feedback.
        ratio: Whether Algorithm 1 sends gradients relative to the weights.
        lr_factor: Factor of the learning rate.
    """

    options: dict[str, Any] | None = None
    exempts: bool = True
    feedback: bool = False
    ratio: bool = True
    lr_factor: float = 1.0


def constant(done: float) -> float:
    """Returns the factor of a learning rate that does not change."""
    return 1.0


class Task(NamedTuple):
    """The training of replicas.

    Attributes:
        n_replicas: Number of replicas.
        batch: Samples of all of them in a step.
        common: Steps that are in float32.
        steps: All steps.
        lr: Learning rate at the beginning.
        make: Makes the network, a chain with a method ``loss(x, t)``.
        policy: Returns the factor of the learning rate from the part of the steps that
            is done.
        weight_decay: Rate of the weight decay.
        are_samples_apart: Whether no sample of a minibatch affects another, and only
            layers that :mod:`.replica_gradients` knows have parameters. The gradients
            of all replicas are then computed together.
    """

    n_replicas: int = 4
    batch: int = 64
    common: int = 100
    steps: int = 500
    lr: float = 0.01
    make: Callable[[], chainer.Chain] = partial(SmallNet, True)
    policy: Callable[[float], float] = constant
    weight_decay: float = 0.0
    are_samples_apart: bool = False


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

    def gradients(self, step: int) -> Gradients:
        """Returns by parameter the gradients of all replicas."""
        batches = self._batches[step]
        if self.task.are_samples_apart:
            hook = ReplicaGradients(self.model, len(batches))
            with hook:
                self._backward(batches.reshape(-1))
            return hook.found
        found: Gradients = {}
        for samples in batches:
            for name, gradient in self._backward(samples).items():
                found.setdefault(name, []).append(gradient.copy())
        return found

    def exact_means(self, step: int) -> dict[str, np.ndarray]:
        """Returns by parameter the mean gradient of all replicas, in float32."""
        if self.task.are_samples_apart:
            return self._backward(self._batches[step].reshape(-1))
        return exact_means(self.gradients(step))

    def update(
        self, means: dict[str, np.ndarray], step: int, factor: float = 1
    ) -> None:
        """Updates the weights with the mean gradients.

        Args:
            means: Mean gradients by parameter.
            step: Number of the step, which decides the learning rate.
            factor: Factor of the learning rate.
        """
        for name, parameter in self.model.namedparams():
            parameter.grad = means[name]
        task = self.task
        self.optimizer.lr = task.lr * factor * task.policy(step / task.steps)
        self.optimizer.update()

    def train_common(self) -> list[bytes]:
        """Takes the common steps, and returns a snapshot."""
        for step in range(self.task.common):
            self.update(self.exact_means(step), step)
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

    def train(self, way: Way, stop: int | None = None) -> Run:
        """Takes the other steps.

        Args:
            way: Way to exchange gradients.
            stop: Number of the step before which to stop; ``None`` for the last one.
        """
        task, run = self.task, Run()
        exchange = _Exchange(way, run)
        for step in range(task.common, task.steps if stop is None else stop):
            if way.options is None:
                means = exact = self.exact_means(step)
            else:
                gradients = self.gradients(step)
                exact = exact_means(gradients)
                weights = {n: p.array for n, p in self.model.namedparams()}
                means = exchange.means(gradients, weights)
            _compare(means, exact, run)
            self.update(means, step, way.lr_factor)
            if (step + 1) % TEST_EVERY == 0:
                run.accuracies.append(accuracy(self.model, self.data))
        return run

    def _backward(self, samples: np.ndarray) -> dict[str, np.ndarray]:
        self.model.cleargrads()
        self.model.loss(self.data.x[samples], self.data.t[samples]).backward()
        return {name: param.grad for name, param in self.model.namedparams()}


class _Exchange:
    """Exchanges of one run, and their state from one to the next."""

    def __init__(self, way: Way, run: Run) -> None:
        self._way, self._run, self._n = way, run, 0
        self._residuals: dict[str, list[np.ndarray]] = {}
        self._q: dict[str, float | None] = {}

    def means(
        self, gradients: Gradients, weights: dict[str, np.ndarray]
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
                options["weights"], options["ratio"] = weights[name], way.ratio
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


def exact_means(gradients: Gradients) -> dict[str, np.ndarray]:
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
    model = task.make()
    optimizer = chainer.optimizers.MomentumSGD(task.lr, MOMENTUM).setup(model)
    if task.weight_decay:
        optimizer.add_hook(WeightDecay(task.weight_decay))
    return model, optimizer
