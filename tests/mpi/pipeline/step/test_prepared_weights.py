"""Weights are compared once a minibatch, also where other ranks have a part in them."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from chainer_kernels import kept_weights
from divisible import Divisible, Plan
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks

CLIPPING = chainer.optimizer_hooks.GradientClipping
WAYS = {
    "replicas": {"plan": Plan([0, 3], 4, "1f1b", replicas=2)},
    "unconfirmed updates": {"n_microbatches": 4, "overlap_minibatches": True},
}


def sums_of_a_step(comm, **options):
    """Returns the arrays that a step of a clipped training makes checksums of."""
    sums, checksum = [], kept_weights._checksum
    np.random.seed(0)
    x, t = np.random.randn(256, 256).astype("f"), np.zeros(256, "i")
    layers = L.Linear(256, 256), F.relu, L.Linear(256, 256)
    pipe = Pipeline(Divisible(*layers), comm, **options)
    optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
    optimizer.add_hook(CLIPPING(1e9))
    kept_weights._checksum = lambda array: sums.append(id(array)) or checksum(array)
    try:
        for _ in range(3):
            sums.clear()
            pipe.step(x, t)
            optimizer.update()
        return sums
    finally:
        kept_weights._checksum = checksum


def check(comm):
    for name, options in WAYS.items():
        sums = sums_of_a_step(comm, **options)
        assert len(sums) == len({*sums}), name
        assert comm.allreduce(len(sums)) > 0, name


def test_a_step_needs_no_checksums():
    assert_on_ranks(2, check)
