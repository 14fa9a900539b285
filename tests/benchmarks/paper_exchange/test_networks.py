"""The networks have the shape of the paper's."""

from functools import partial

import numpy as np
import pytest

from benchmarks.paper_exchange.networks import CaffeNet, GoogLeNet
from tests.benchmarks.data_parallel.test_replica_gradients import (
    assert_gradients_are_those_of_replicas,
)


def parameters(network):
    return {name: param.array for name, param in network.namedparams()}


def test_caffenet_has_most_parameters_in_linear_layers():
    found = parameters(CaffeNet())
    sizes = {name: array.size for name, array in found.items()}
    # Table 3 has 16 tensors, 5 convolutions and 3 fully connected layers.
    assert len(found) == 16
    assert sum(array.ndim == 4 for array in found.values()) == 5
    assert sum(array.ndim == 2 for array in found.values()) == 3
    linear = sum(n for name, n in sizes.items() if name.startswith("/fc"))
    assert linear > 0.9 * sum(sizes.values())


def test_googlenet_has_most_parameters_in_convolutions():
    found = parameters(GoogLeNet())
    matrices = [array for array in found.values() if array.ndim == 2]
    convolutions = [array for array in found.values() if array.ndim == 4]
    assert (len(convolutions), len(matrices)) == (22, 3)
    assert sum(a.size for a in convolutions) > 6 * sum(a.size for a in matrices)


@pytest.mark.parametrize("make", [partial(CaffeNet, 24), GoogLeNet])
def test_gradients_of_replicas_may_be_computed_together(make):
    assert_gradients_are_those_of_replicas(make, 4)


@pytest.mark.parametrize("make", [CaffeNet, GoogLeNet])
def test_every_parameter_has_a_gradient(make):
    np.random.seed(0)
    network = make()
    x, t = np.random.rand(6, 1, 8, 8).astype("f"), np.arange(6, dtype="i")
    assert network(x).shape == (6, 10)
    network.cleargrads()
    network.loss(x, t).backward()
    for name, param in network.namedparams():
        assert param.grad is not None and np.isfinite(param.grad).all(), name
