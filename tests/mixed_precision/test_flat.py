"""Parameters stay what they are for everybody else, wherever their arrays come from."""

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

from divisible import Divisible
from mixed_precision import MixedPrecision, to_float16
from tests.support.mixed_precision import (
    HOOKS,
    N_STEPS,
    assert_equal,
    give_gradients,
    make_model,
    pair,
    update_both,
)


def test_gradient_of_any_memory_layout():
    optimizer, reference = pair(optimizers.SGD, loss_scale=1)
    give_gradients(optimizer, reference, 0)
    W = optimizer.target[0].W
    W.grad = np.asfortranarray(W.grad)
    update_both(optimizer, reference, 0)
    assert_equal(optimizer, reference)


def test_weights_changed_by_others_are_taken_over():
    optimizer, reference = pair(optimizers.MomentumSGD, loss_scale=2)
    for step in range(N_STEPS):
        give_gradients(optimizer, reference, step)
        if step == 2:
            W, twin = optimizer.target[0].W, reference.target[0].W
            W.array[0] = 0.25
            twin.array[0] = 0.25
            optimizer.target[2].W.array = np.full_like(optimizer.target[2].W.array, 2)
            reference.target[2].W.array[...] = 2
        update_both(optimizer, reference, step)
    assert_equal(optimizer, reference)


def exchange_rows(model):
    """Gives each of three weights of a shape the array of the next one."""
    weights = [model[i].W for i in range(3)]
    for W, array in zip(weights, [W.array for W in weights[1:] + weights[:1]]):
        W.array = array


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_weights_that_exchange_their_arrays_are_taken_over(dtype):
    model = Divisible(*(L.Linear(3, 3, initialW=i + 1) for i in range(3)))
    if dtype == np.float16:
        to_float16(model)
    optimizer = MixedPrecision(optimizers.SGD(lr=1), loss_scale=1).setup(model)
    for expected in ([1, 2, 3], [2, 3, 1]):
        for param in model.params():
            param.grad = np.zeros_like(param.array)
        optimizer.update()
        assert [set(layer.W.array.flat) for layer in model] == [{e} for e in expected]
        exchange_rows(model)
    # The part of another one, reversed.
    optimizer.update()
    model[0].W.array = np.arange(9, dtype=dtype).reshape(3, 3)
    optimizer.update()
    model[0].W.array = model[0].W.array[::-1]
    optimizer.update()
    np.testing.assert_array_equal(model[0].W.array[:, 0], [6, 3, 0])


def test_error_of_the_first_hook_is_not_hidden(monkeypatch):
    optimizer, reference = pair(optimizers.SGD, HOOKS["decay"], loss_scale=1)
    give_gradients(optimizer, reference, 0)

    def fail(group):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("mixed_precision.flat.Group._make_float32_views", fail)
        with pytest.raises(MemoryError):
            optimizer.update()
    update_both(optimizer, reference, 0)
    assert_equal(optimizer, reference)


def test_to_float16_after_setup():
    model = make_model()
    optimizer = MixedPrecision(optimizers.MomentumSGD(), loss_scale=1).setup(model)
    for dtype in (np.float32, np.float16):
        for param in model.params():
            param.grad = np.ones_like(param.array)
        optimizer.update()
        assert model[0].W.dtype == dtype
        to_float16(model)
    assert optimizer.t == 2
