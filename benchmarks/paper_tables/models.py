"""The models of the paper, and where they are cut. No MPI here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import chainer.functions as F
import chainer.links as L
import numpy as np
from _hosts import Hosts
from chainer.initializers import HeNormal

from divisible import Divisible, Network, Plan, Profile, deferred_init, partition
from divisible.layer_costs import interpolate
from paper_tables.points import EQUAL, MLP_LAYERS, N_CLASSES, Point
from pipeline.planning.prediction import predict

ROOT = Path(__file__).resolve().parents[2]


def build(point: Point) -> Divisible:
    """Builds a model without allocating its parameters."""
    with deferred_init(seed=0):
        if point.model == "mlp":
            return perceptron(point.size)
        # The examples are scripts, not a package that is installed.
        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))
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
    """Returns where the model is cut for a point.

    Args:
        point: Its ``cut`` is the paper's, of equally many layers on all hosts, or ours.
        profiles: Of the layers, at several sizes; for our cut only.
        hosts: Where it will run.
    """
    if point.cut != EQUAL:
        return our_cuts(point, profiles, hosts)
    return equal_cuts(point, hosts.n)


def equal_cuts(point: Point, n_stages: int) -> list[int]:
    """Cuts into stages of equally many layers."""
    if point.model == "mlp":
        # ReLU stays with the layer before it.
        starts = [2 * (MLP_LAYERS * i // n_stages) for i in range(n_stages)]
        return [*starts, 2 * MLP_LAYERS - 1]
    return list(Plan.uniform(len(build(point)), n_stages).cuts)


def our_cuts(point: Point, profiles: list[Profile], hosts: Hosts) -> list[int]:
    """Cuts optimally, into as many stages as are fastest by simulation.

    That may be fewer than there are hosts: where one layer is the slowest stage in any
    case, more stages only take longer to fill.
    """
    costs = interpolate(profiles, point.samples)
    network = Network(bandwidth=hosts.bandwidth)

    def plan(n_stages: int) -> Plan:
        cuts = partition(costs, n_stages, network=network, speeds=hosts.share).cuts
        return Plan(cuts, n_microbatches=point.microbatches, schedule=point.schedule)

    def seconds(plan: Plan) -> float:
        batch, speeds = point.batch, hosts.share
        return predict(
            plan, profiles, batch=batch, network=network, speeds=speeds
        ).makespan

    return list(min(map(plan, range(1, hosts.n + 1)), key=seconds).cuts)
