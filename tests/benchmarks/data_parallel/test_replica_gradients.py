"""Gradients from one backward are those of a backward for each replica."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from benchmarks.data_parallel.simulated import Replicas, Task


class EveryKind(chainer.Chain):
    """Strides, dilations, groups, no bias, and a layer that is used twice."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 6, 3, stride=2, pad=1)
            self.conv2 = L.Convolution2D(6, 9, (3, 2), pad=1, dilate=2, groups=3)
            self.conv3 = L.Convolution2D(9, 4, 1, nobias=True)
            self.twice = L.Linear(4, 4)
            self.last = L.Linear(4, 10, nobias=True)

    def loss(self, x, t):
        h = F.relu(self.conv2(F.relu(self.conv1(x))))
        h = F.average(F.relu(self.conv3(h)), axis=(2, 3))
        return F.softmax_cross_entropy(self.last(self.twice(F.relu(self.twice(h)))), t)


def assert_gradients_are_those_of_replicas(make, n_replicas):
    task = Task(n_replicas, 12, 1, 3, make=make)
    apart, together = (
        Replicas(task._replace(are_samples_apart=each), 0) for each in (False, True)
    )
    expected, found = apart.gradients(1), together.gradients(1)
    assert sorted(found) == sorted(expected)
    for name, each in expected.items():
        assert len(found[name]) == n_replicas
        np.testing.assert_allclose(found[name], each, 1e-3, 1e-5, err_msg=name)
    exact = together.exact_means(1)
    for name, mean in apart.exact_means(1).items():
        np.testing.assert_allclose(exact[name], mean, 1e-3, 1e-5, err_msg=name)


@pytest.mark.parametrize("n_replicas", [1, 3, 12])
def test_gradients_of_all_replicas(n_replicas):
    assert_gradients_are_those_of_replicas(EveryKind, n_replicas)
