"""Replicas on hosts, which train in several ways that take turns.

A *way* says which optimizer it is that exchanges gradients. Each has a model of its
own, and all train with the same minibatches, so that one run tells times and
accuracies.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import chainermn
import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import step_seconds
from benchmarks.data_parallel.digits import Digits, digits
from benchmarks.data_parallel.networks import NETWORKS, Network
from data_parallel import create_multi_node_optimizer, oyama2017
from data_parallel.quantiles import Draw, quantile
from data_parallel.settings import Settings
from data_parallel.units import PARTS

#: Seconds between two looks of a rank that waits for the others to start or end.
PAUSE = 0.002
#: Seconds that a rank may wait for another.
TIMEOUT = 300.0
#: Test images, and steps between two tests.
N_TEST, TEST_EVERY = 400, 5
#: Ways that exchange nothing, and by ChainerMN's own optimizer.
ALONE, CHAINERMN = "alone", "ChainerMN"
#: Exchanges for which Algorithm 1 keeps its quantiles.
QUANTILE_EVERY = 100


class Job(NamedTuple):
    """The training that all replicas do.

    Attributes:
        network: A name of `NETWORKS`.
        ways: By name the options of our optimizer; ``ALONE`` and ``CHAINERMN`` have
            none.
        rounds: Steps of each way, after two that are not counted.
        batch: Samples of a replica; that of the network if ``None``.
        tests: Whether accuracies are measured.
    """

    network: str
    ways: dict[str, dict[str, Any]]
    rounds: int
    batch: int | None = None
    tests: bool = False


class Trained(NamedTuple):
    """The result of training in one way.

    Attributes:
        seconds: Seconds of each step, on the slowest replica.
        parts: Seconds that the first replica took for each part of its exchange, by
            name; medians.
        accuracies: Accuracies after every `TEST_EVERY` steps, in percent.
    """

    seconds: list[float]
    parts: dict[str, float]
    accuracies: list[float]


class Replica:
    """One replica that trains in one way.

    Args:
        comm: Communicator of all replicas.
        network: Network that is trained.
        name: Name of the way.
        options: Options of the way.
    """

    def __init__(
        self, comm: MPI.Comm, network: Network, name: str, options: dict[str, Any]
    ) -> None:
        self.model = network.make()
        optimizer = chainer.optimizers.MomentumSGD(network.lr)
        self._is_ours = name not in (ALONE, CHAINERMN)
        if name == CHAINERMN:
            naive = chainermn.create_communicator("naive", comm)
            optimizer = chainermn.create_multi_node_optimizer(optimizer, naive)
        elif self._is_ours:
            optimizer = create_multi_node_optimizer(
                optimizer, comm, timeout=TIMEOUT, **options
            )
        self.optimizer = optimizer.setup(self.model)
        self.parts: list[dict[str, float]] = []

    def step(self, x: np.ndarray, t: np.ndarray) -> None:
        """Trains with a minibatch."""
        self.optimizer.update(self._loss, x, t)
        if self._is_ours:
            self.parts.append(self.optimizer.exchange.seconds)

    def accuracy(self, data: Digits) -> float:
        """Returns how many of some test images in a hundred are classified right."""
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            y = self.model(data.x_test[:N_TEST])
            return 100 * float(F.accuracy(y, data.t_test[:N_TEST]).array)

    def quantile_seconds(self) -> float:
        """Returns the seconds that quantiles of Algorithm 1 take, by exchange."""
        start, settings = time.perf_counter(), Settings()
        for name, param in self.model.namedparams():
            ratio = oyama2017.ratios(param.grad, param.array, settings.epsilon)
            ratio = ratio.reshape(-1)
            quantile(ratio[Draw(0, name, 0).elements(ratio.size, settings)], settings)
        return (time.perf_counter() - start) / QUANTILE_EVERY

    def close(self) -> None:
        """Frees communicators; a call of all ranks."""
        if self._is_ours:
            self.optimizer.close()

    def _loss(self, x: np.ndarray, t: np.ndarray) -> chainer.Variable:
        return F.softmax_cross_entropy(self.model(x), t)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Runs on each host; the answer of the first one counts."""
    return train(MPI.COMM_WORLD, Job(**job))


def train(comm: MPI.Comm, job: Job) -> dict[str, Any]:
    """Trains in all ways, and returns the results by name.

    Args:
        comm: Communicator of the replicas.
        job: Work of all replicas.
    """
    network, data = NETWORKS[job.network], digits(0)
    batch = job.batch or network.batch
    replicas = {
        name: Replica(comm, network, name, options)
        for name, options in job.ways.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in replicas}
    accuracies: dict[str, list[float]] = {name: [] for name in replicas}
    names, order = list(replicas), np.random.RandomState(0)
    for i in range(job.rounds + 2):
        # All replicas draw the same, and each takes its part.
        chosen = order.permutation(len(data.x))[: batch * comm.size]
        own = chosen[comm.rank :: comm.size]
        x, t = data.x[own], data.t[own]
        # Another order every round, so that no way always follows the same one.
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            took = step_seconds(comm, partial(replicas[name].step, x, t), PAUSE)
            if i >= 2:
                seconds[name].append(took)
        if job.tests and comm.rank == 0 and i >= 2 and (i - 1) % TEST_EVERY == 0:
            for name, replica in replicas.items():
                accuracies[name].append(replica.accuracy(data))
    any_replica = next(iter(replicas.values()))
    found = {
        "parameters": sum(param.size for param in any_replica.model.params()),
        "quantile": any_replica.quantile_seconds(),
        "ways": {
            name: Trained(seconds[name], _medians(each.parts[2:]), accuracies[name])
            for name, each in replicas.items()
        },
    }
    for replica in replicas.values():
        replica.close()
    return found


def _medians(parts: list[dict[str, float]]) -> dict[str, float]:
    if not parts:
        return {}
    return {part: statistics.median(each[part] for each in parts) for part in PARTS}
