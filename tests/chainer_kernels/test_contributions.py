"""What overwrites a gradient, or is added to it."""

import numpy as np
import pytest

from chainer_kernels import contributions
from chainer_kernels.contributions import Product, Scratch, Whole

RANDOM = np.random.RandomState(0)
X, GY = (RANDOM.normal(size=(5, n)).astype(np.float32) for n in (6, 4))


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    "contribution, expected",
    [
        (Whole(X), X),
        (Product(GY.T, X), GY.T.dot(X)),
        # The gradient of a weight of more axes.
        (Product(GY.T, X), GY.T.dot(X).reshape(4, 2, 3)),
    ],
)
def test_first_overwrites_and_later_ones_add(
    contribution, expected, n_threads, monkeypatch
):
    monkeypatch.setattr(contributions, "blas_threads", lambda: n_threads)
    scratch = Scratch()
    out = np.full(expected.shape, np.nan, np.float32)
    contribution.write(out)
    np.testing.assert_array_equal(out, expected)
    for _ in range(2):
        contribution.add(out, scratch)
    np.testing.assert_allclose(out, 3 * expected, rtol=1e-5)


def test_scratch_is_shared_and_grows():
    scratch = Scratch()
    small = scratch.empty((2, 3), np.dtype("f"))
    large = scratch.empty((4, 3), np.dtype("f"))
    assert large.shape == (4, 3) and not np.shares_memory(small, large)
    assert np.shares_memory(scratch.empty((3, 4), np.dtype("f")), large)
    assert not np.shares_memory(scratch.empty((2, 2), np.dtype("d")), large)
