"""Kernels of dropout against Chainer's functions."""

import chainer.functions as F
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from tests.support import kernels

KERNELS = ["Dropout.forward_cpu", "DropoutGrad.forward"]


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    kernels.orders,
    kernels.seeds,
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from(["float32", "float16"]),
)
def test_draws_what_chainer_draws(shape, order, seed, ratio, dtype):
    x = kernels.in_order(kernels.arrays(shape, seed).astype(dtype), order)

    def run():
        np.random.seed(seed)
        (y,), (gx,) = kernels.run(lambda x: F.dropout(x, ratio), [x])
        y2, mask = F.dropout(x, ratio, return_mask=True)
        return [y, gx, y2.array, mask, np.random.rand()]

    with kernels.called() as names:
        ours = run()
    assert names == set(KERNELS)
    with chainer_kernels.disabled():
        chainers = run()
    for one, other in zip(ours, chainers):
        np.testing.assert_array_equal(one, other, strict=True)


def test_numbers_of_other_generators_than_numpys_own(monkeypatch):
    x = kernels.arrays((3, 4), 1)
    other = np.random.RandomState(np.random.PCG64(3))
    monkeypatch.setattr(np.random, "rand", other.rand)
    y = F.dropout(x)
    expected = np.random.RandomState(np.random.PCG64(3)).rand(3, 4) >= 0.5
    np.testing.assert_array_equal(y.array != 0, expected)
    monkeypatch.setattr(np.random, "rand", lambda *shape: np.ones(shape))
    np.testing.assert_array_equal(F.dropout(x).array, 2 * x)


def test_given_masks():
    x = kernels.arrays((3, 4, 5), 1, "channels last")
    mask = np.float32([0, 2, 2, 0, 0])
    for given_mask in (np.broadcast_to(mask, x.shape), mask):
        state = np.random.get_state()[2]
        y = F.dropout(x, mask=given_mask)
        np.testing.assert_array_equal(y.array, x * mask)
        assert np.random.get_state()[2] == state


def test_second_derivative():
    mask = 2 * np.float32(kernels.arrays((3, 4), 2) > 0)
    kernels.check_second_derivative(
        lambda x: F.dropout(x * x, mask=mask), [kernels.arrays((3, 4), 1)]
    )
