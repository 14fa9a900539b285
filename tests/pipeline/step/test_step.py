"""What happens around a run of the schedule."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import ActionError, Pipeline

X, T = np.eye(4, 3, dtype=np.float32), np.arange(4, dtype=np.int32) % 3


def pipeline(*layers, **options):
    return Pipeline(Divisible(*layers), MPI.COMM_SELF, n_microbatches=2, **options)


def configuration(seen):
    """Returns a layer that notes how it is called."""

    def layer(x):
        seen.append((chainer.config.train, chainer.config.enable_backprop))
        return x

    return layer


def test_only_steps_are_counted_and_recorded():
    pipe = pipeline(L.Linear(3, 3))
    assert (pipe.n_steps, pipe.internals.record) == (0, None)
    pipe.step(X, T)
    record = pipe.internals.record
    pipe.evaluate(X, T)
    pipe.predict(X)
    assert pipe.n_steps == 1 and pipe.internals.record is record
    assert len(record.program.operations) == 4


def test_a_step_that_fails_is_not_counted():
    def fails(x):
        raise ValueError("on purpose")

    pipe = pipeline(fails)
    with pytest.raises(ActionError, match="on purpose"):
        pipe.step(X, T)
    assert (pipe.n_steps, pipe.internals.record) == (0, None)


def test_each_pass_has_its_configuration():
    seen = []
    pipe = pipeline(L.Linear(3, 3), configuration(seen))
    with chainer.no_backprop_mode():
        pipe.step(X, T)
    pipe.evaluate(X, T)
    pipe.predict(X)
    assert seen == 2 * [(True, True)] + 4 * [(False, False)]


def huge(y, t):
    """Overflows whatever the weights are."""
    return F.sum(0 * y + np.float32(3e38)) * 10.0


def test_infinities_are_silent_only_where_a_loss_scale_looks_for_them():
    with np.errstate(all="raise"):
        with pytest.raises(ActionError, match="overflow"):
            pipeline(L.Linear(3, 3), lossfun=huge, accfun=None).step(X, T)
        scaled = pipeline(L.Linear(3, 3), lossfun=huge, accfun=None, loss_scale=2.0)
        assert not np.isfinite(scaled.step(X, T)["loss"])


def test_a_loss_scale_is_read_in_every_step():
    class Scale:
        value = 2.0

        def __float__(self):
            return self.value

    scale = Scale()
    pipe = pipeline(L.Linear(3, 3), loss_scale=scale)
    param = pipe.stages[0][0].W
    grads = []
    for scale.value in (2.0, 8.0):
        pipe.step(X, T)
        grads.append(param.grad.copy())
    np.testing.assert_array_equal(4 * grads[0], grads[1])
