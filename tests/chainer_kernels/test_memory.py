"""Memory that is kept for the next step."""

import resource

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_kernels import memory


@pytest.mark.skipif(not memory.keep_freed(), reason="needs the GNU C library")
def test_later_steps_ask_the_kernel_for_no_memory():
    model = chainer.Sequential(*[L.Linear(1024, 1024), F.relu] * 2, L.Linear(1024, 8))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    x, t = np.ones((4096, 1024), "f"), np.zeros(4096, "i")

    def step():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    *_, third, fourth, fifth = (step() for _ in range(5))
    # The activations of a step alone are 16,000 pages, and each weight's gradient is
    # 1,024. Earlier tests may leave a step without room for one array, of 4,096 pages,
    # which the next step has.
    assert min(third, fourth, fifth) < 4000
