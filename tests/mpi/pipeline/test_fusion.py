"""Pipelines whose stages run chains of layers as one function."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible
from pipeline import Pipeline
from tests.support.fusion import assert_same_bits
from tests.support.mpiexec import assert_on_ranks


def train(comm, fuse):
    """Returns the losses and this rank's weights after some minibatches."""
    np.random.seed(0)
    model = Divisible(L.Linear(6, 20), F.tanh, F.dropout, L.Linear(20, 20))
    for layer in (F.dropout, F.relu, F.sigmoid, L.Linear(20, 3)):
        model.append(layer, recompute=layer is F.dropout)
    if fuse:
        model.fuse()
        model._fusion.decide({(1, 3): True, (5, 7): True})
    stage = model.divide(*[(0, 3), (3, 8)][comm.rank])
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    x, t = np.random.randn(8, 6).astype("f"), np.arange(8, dtype="i") % 3
    losses = []
    with Pipeline(stage, comm, 4, "1f1b", checkpoint="except_last") as pipe:
        for _ in range(3):
            losses.append(np.float64(pipe.step(x, t)["loss"]))
            optimizer.update()
        losses.append(np.float64(pipe.evaluate(x, t)["loss"]))
    if fuse:
        assert 2 in {chain.n_layers for chain in stage._fusion._chains.values()}
    return [*losses, *(param.array for _, param in sorted(stage.namedparams()))]


def same_bits(comm):
    assert_same_bits(train(comm, True), train(comm, False))


def test_training_has_the_same_bits_as_without():
    assert_on_ranks(2, same_bits)
