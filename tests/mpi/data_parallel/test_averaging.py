"""Gradients that are not there on all ranks, or cannot be exchanged."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible.communication.errors import DisagreementError
from mixed_precision import DynamicLossScale, MixedPrecision, to_float16
from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    TIMEOUT,
    assert_alike,
    make_batches,
    make_model,
    replicate,
)


def not_to_be_exchanged(comm):
    model = make_model()
    if comm.rank == 1:
        model.add_param("count", initializer=np.zeros(2, "i"))
    optimizer = replicate(comm, model)
    (x, t), *_ = make_batches(1, 4)
    error = TypeError if comm.rank == 1 else DisagreementError
    with pytest.raises(error, match="parameter /count is of dtype int32"):
        optimizer.update(model, x, t)
    optimizer.close()


def test_what_cannot_be_exchanged_is_refused_on_all_ranks():
    assert_on_ranks(2, not_to_be_exchanged)


class Branches(chainer.Chain):
    """Not all parameters have a gradient on all ranks."""

    def __init__(self):
        super().__init__(a=L.Linear(3, 2), b=L.Linear(3, 2), c=L.Linear(3, 2))


def missing_gradients(comm):
    x = np.ones((2, 3), "f")
    for double_buffering in (False, True):
        np.random.seed(0)
        model = Branches()
        optimizer = replicate(comm, model, double_buffering=double_buffering)
        before = model.b.W.array.copy()
        for _ in range(2):
            model.cleargrads()
            F.sum(model.a(x) + (0 if comm.rank else model.b(x))).backward()
            mine = None if comm.rank else model.b.W.grad.copy()
            optimizer.update()
        expected = before - np.float32(0.1) * (comm.bcast(mine) / comm.size)
        if not double_buffering:
            # Momentum 0.9, twice the same gradient.
            expected -= np.float32(0.19) * (comm.bcast(mine) / comm.size)
        np.testing.assert_allclose(model.b.W.array, expected, 1e-5)
        assert_alike(comm, model)
        optimizer.close()
    model = Branches()
    optimizer = replicate(comm, model, zero_fill=False)
    model.cleargrads()
    F.sum(model.a(x) + (0 if comm.rank else model.b(x))).backward()
    with pytest.raises(DisagreementError, match="/b/W is there on some"):
        # The first parameters are those of rank 0, without an update.
        optimizer.update()
        model.cleargrads()
        F.sum(model.a(x) + (0 if comm.rank else model.b(x))).backward()
        optimizer.update()
    optimizer.close()


def test_zeros_stand_for_a_missing_gradient():
    assert_on_ranks(2, missing_gradients)


def scaled_gradients(comm):
    """Rank 0 uses one layer, rank 1 another, and no sample at all in the last step."""
    x = np.ones((2, 3), np.float32)
    plain = [chainer.optimizers.SGD(0.5) for _ in range(2)]
    for each in plain:
        each.set_loss_scale(512.0)
    scale = DynamicLossScale(16.0, growth_interval=1)
    mixed = MixedPrecision(
        chainer.optimizers.SGD(0.5), loss_scale=scale, comm=comm, timeout=TIMEOUT
    )
    # The second script calls backward without the scale, which Chainer allows.
    for inner, given in zip((*plain, mixed), (512.0, None, scale)):
        model = Branches()
        for param in model.params():
            param.array[...] = 0
        if inner is mixed:
            model = to_float16(model)
        optimizer = replicate(comm, model, inner)
        last = [0 if comm.rank else 2] if given else []
        for n in (2, 2, *last):
            layer = model.b if comm.rank else model.a
            model.cleargrads()
            if n:
                y = layer(x[:n].astype(layer.W.dtype))
                F.sum(y).backward(loss_scale=given and float(given))
            optimizer.n_samples = n
            optimizer.update()
        # A gradient is 2 on one rank of two, and at last on the only one with samples.
        assert (model.a.W.array == -0.5 * (1 + 1 + 2 * len(last))).all()
        assert (model.b.W.array == -0.5 * (1 + 1)).all()
        optimizer.close()
    mixed.close()


def test_the_loss_scale_of_a_gradient_that_only_other_ranks_have_is_known():
    assert_on_ranks(2, scaled_gradients)
