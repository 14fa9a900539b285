"""Convolutions by BLAS and compiled loops, where Chainer's functions do not reach."""

import numpy as np
import pytest

from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import blas
from tests.support import kernels


@pytest.mark.parametrize("groups", [1, 2])
def test_relu_while_it_is_in_the_cache(groups):
    x, W = kernels.arrays((3, 5, 5, 4), 0), kernels.arrays((6, 4 // groups, 3, 3), 1)
    b = kernels.arrays((6,), 2)
    # The outermost outputs read nothing but zeros.
    geometry = Geometry((3, 3), (1, 1), (3, 3), (1, 1), groups)
    y = blas.convolution(x, W, b, geometry)
    assert y.min() < 0
    np.testing.assert_array_equal(
        blas.convolution(x, W, b, geometry, relu=True), np.maximum(y, 0)
    )


@pytest.mark.parametrize(
    ("groups", "kernel"), [(1, 1), (1, 3), (2, 3)], ids=["1x1", "3x3", "groups"]
)
def test_weight_gradient_into_what_is_there(groups, kernel):
    geometry = Geometry((kernel,), (1,), (0,), (1,), groups)
    x, gy = kernels.arrays((3, 6, 4), 0), kernels.arrays((3, 7 - kernel, 4), 1)
    right = blas.convolution_weights(x, gy, geometry)
    out = np.full_like(right, 2)
    assert blas.convolution_weights(x, gy, geometry, out) is out
    np.testing.assert_array_equal(out, right)
    blas.convolution_weights(x, gy, geometry, out, accumulate=True)
    np.testing.assert_array_equal(out, right + right)


@pytest.mark.parametrize("kernel", [1, 3])
def test_weight_gradient_into_what_has_gaps(kernel):
    geometry = Geometry((kernel,), (1,), (0,), (1,))
    x, gy = kernels.arrays((3, 6, 4), 0), kernels.arrays((3, 7 - kernel, 4), 1)
    out = np.zeros((4, 8, kernel), "f")[:, ::2]
    with pytest.raises(ValueError, match="out must be C contiguous"):
        blas.convolution_weights(x, gy, geometry, out)


def test_product():
    a, b = kernels.arrays((3, 4), 0), kernels.arrays((5, 4), 1).T
    out = np.ones((3, 5), "f")
    assert blas.product(a, b, out) is out
    np.testing.assert_array_equal(out, blas.product(a, b))
    blas.product(a, b, out, accumulate=True)
    np.testing.assert_allclose(out, 2 * (a @ b), rtol=1e-5)
