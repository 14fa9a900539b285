"""The models of the paper, and where they are cut. No MPI here."""

from __future__ import annotations

from typing import Any

import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.initializers import HeNormal

from benchmarks.common.hosts import Hosts
from benchmarks.paper_tables.points import EQUAL, MLP_LAYERS, N_CLASSES, Point
from divisible import (
    Divisible,
    Machine,
    Network,
    Plan,
    Profile,
    best_plan,
    deferred_init,
)


def build(point: Point) -> Divisible:
    """Builds a model without allocating its parameters."""
    with deferred_init(seed=0):
        if point.model == "mlp":
            return perceptron(point.size)
        from examples.train.models.resnet50 import ResNet50
        from examples.train.models.vgg16 import VGG16

        kind = {"vgg16": VGG16, "resnet50": ResNet50}[point.model]
        return kind(N_CLASSES, point.size)


def perceptron(width: int) -> Divisible:
    """Makes 31 times Linear and ReLU, and Linear to 10 (section 5 of the paper)."""
    layers: list[Any] = []
    for _ in range(MLP_LAYERS - 1):
        layers += [L.Linear(width, width, initialW=HeNormal()), F.relu]
    return Divisible(*layers, L.Linear(width, N_CLASSES))


def minibatch(point: Point, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes random samples and labels."""
    random = np.random.RandomState(0)
    shape = (point.size,) if point.model == "mlp" else (3, point.size, point.size)
    x = random.randn(n, *shape).astype(np.float32)
    return x, random.randint(0, N_CLASSES, n).astype(np.int32)


def cuts(point: Point, profiles: list[Profile], hosts: Hosts) -> list[int]:
    """Returns the cuts of the model for a point.

    Args:
        point: Point to measure. Its ``cut`` is the paper's, of equally many layers on
            all hosts, or ours: the one that is fastest by simulation. Ours may have
            fewer stages than there are hosts: where one layer is the slowest stage in
            any case, more stages only take longer to fill.
        profiles: Profiles of the layers, at several sizes; for our cut only.
        hosts: Hosts on which the model will run.
    """
    if point.cut == EQUAL:
        return equal_cuts(point)
    network = Network(bandwidth=hosts.bandwidth)
    return our_cuts(point, profiles, Machine(hosts.n, None, network, hosts.share))


def our_cuts(point: Point, profiles: list[Profile], machine: Machine) -> list[int]:
    """Returns the cuts that are fastest by simulation.

    Args:
        point: Point to measure.
        profiles: Profiles of the layers, at several sizes.
        machine: Ranks of the machine, with their speeds and links.
    """
    plan = best_plan(
        profiles,
        machine,
        batch=point.batch,
        microbatches=[point.microbatches],
        schedules=[point.schedule],
        recompute=["never"],
    )
    return list(plan.cuts)


def equal_cuts(point: Point) -> list[int]:
    """Cuts into stages of equally many layers, one for every host."""
    if point.model == "mlp":
        # ReLU stays with the layer before it.
        starts = [2 * (MLP_LAYERS * i // point.hosts) for i in range(point.hosts)]
        return [*starts, 2 * MLP_LAYERS - 1]
    return list(Plan.uniform(len(build(point)), point.hosts).cuts)
