"""Predictions in whole numbers are the same on any cut, whatever ranks choose."""

import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from chainer_kernels.geometry import Geometry
from divisible import Divisible, Plan
from model_compression import Compress, CompressionPlan, Quantize, apply
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks
from tests.support.whole_numbers import choose, offer

KERNEL = Geometry((3, 3), (1, 1), (1, 1), (1, 1))


def stored():
    """A model that learned a little with few bits, and is stored in them."""
    np.random.seed(3)
    model = Divisible(
        L.Convolution2D(2, 40, 3, pad=1),
        functools.partial(F.average_pooling_2d, ksize=5),
        L.Linear(40, 600),
        F.tanh,
        L.Linear(600, 9),
    )
    plan = CompressionPlan([Quantize("int8", targets=["weight", "input"])])
    optimizer = chainer.optimizers.SGD(0.01).setup(model)
    compress = Compress(plan, optimizer)
    x = np.random.default_rng(0).normal(size=(30, 2, 5, 5)).astype(np.float32)
    for iteration in (1, 2):
        model.cleargrads()
        F.sum(F.square(model(x))).backward()
        optimizer.update()
        compress.advance(iteration, 0.0)
    return apply(model, plan), x


def choose_all(is_whole):
    for n_rows in range(1, 31):
        choose((n_rows, 2, 5, 5), (40, 2, 3, 3), is_whole, KERNEL)
        choose((n_rows, 40), (600, 40), is_whole)
        choose((n_rows, 600), (9, 600), is_whole)


def predicts_as_one_rank(comm, cuts, n_microbatches):
    with pytest.MonkeyPatch.context() as patch:
        offer(patch)
        model, x = stored()
        choose_all(True)
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            expected = model(x).array
        # Ranks that measured differently.
        choose_all(comm.rank % 2 == 0)
        stage = model.divide(*Plan(cuts).range(comm.rank))
        with Pipeline(stage, comm, n_microbatches=n_microbatches, timeout=30) as pipe:
            found = pipe.predict(x if pipe.is_first else None)
    if found is not None:
        np.testing.assert_array_equal(found, expected)
    assert comm.allreduce(found is not None) >= 1


@pytest.mark.parametrize(
    "cuts, n_microbatches", [([0, 2, 5], 1), ([0, 1, 5], 4), ([0, 1, 3, 5], 7)]
)
def test_any_cut_predicts_the_same_bits(cuts, n_microbatches):
    assert_on_ranks(len(cuts) - 1, predicts_as_one_rank, cuts, n_microbatches)
