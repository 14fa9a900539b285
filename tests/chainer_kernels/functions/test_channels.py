"""Statistics of channels against NumPy's in float64."""

import numpy as np
import pytest

from chainer_kernels.functions import channels
from tests.support import kernels

# The second has rows that are put together, the third blocks of several lengths.
SHAPES = [(4, 5, 30), (64, 6, 1), (300, 257, 1), (6, 1, 1)]
AXES = 1, 3


def grouped(array, n_groups):
    return array.astype("d").reshape(n_groups, -1, *array.shape[1:])


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_moments_and_products(shape, n_groups):
    x, gy = kernels.arrays((2, *shape), 1)
    x += np.float32(10)
    values, gradients = grouped(x, n_groups), grouped(gy, n_groups)
    mean, var = channels.moments(x, n_groups)
    np.testing.assert_allclose(mean, values.mean(AXES), 1e-6)
    np.testing.assert_allclose(var, values.var(AXES), 1e-5)
    centred = values - mean.astype("f")[:, None, :, None]
    sums, products = channels.products(x, gy, mean)
    np.testing.assert_allclose(sums, gradients.sum(AXES), 1e-5, 1e-3)
    np.testing.assert_allclose(products, (gradients * centred).sum(AXES), 1e-4, 1e-2)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_scale_and_combine(shape, n_groups):
    x, gy = kernels.arrays((2, *shape), 1)
    means, scales, slopes, shifts = kernels.arrays((4, n_groups, shape[1]), 2)
    out = np.empty_like(x)
    values, gradients = grouped(x, n_groups), grouped(gy, n_groups)
    m, a, b, c = (p[:, None, :, None] for p in (means, scales, slopes, shifts))
    channels.scale(x, means, scales, shifts, out)
    right = (values - m) * a + c
    np.testing.assert_allclose(grouped(out, n_groups), right, 1e-5, 1e-5)
    channels.combine(x, gy, means, scales, slopes, shifts, out)
    right = gradients * a + (values - m) * b + c
    np.testing.assert_allclose(grouped(out, n_groups), right, 1e-5, 1e-5)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] == 1])
def test_sums(shape):
    x = kernels.arrays(shape, 1)
    np.testing.assert_allclose(channels.sums(x), x.sum((0, 2), dtype="d"), 1e-5, 1e-4)


def test_blocks_of_a_group_do_not_reach_into_the_next():
    starts, counts = channels.row_blocks(600, 2, 256)
    assert starts.tolist() == [0, 128, 256, 300, 428, 556, 600]
    assert counts.tolist() == [128, 128, 44]
