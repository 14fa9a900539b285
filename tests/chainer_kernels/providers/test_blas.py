"""Convolutions by BLAS and compiled loops, where Chainer's functions do not reach."""

import numpy as np
import pytest

from chainer_kernels.providers import Geometry, blas
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


def test_product():
    a, b = kernels.arrays((3, 4), 0), kernels.arrays((5, 4), 1).T
    out = np.ones((3, 5), "f")
    assert blas.product(a, b, out) is out
    np.testing.assert_array_equal(out, blas.product(a, b))
    blas.product(a, b, out, accumulate=True)
    np.testing.assert_allclose(out, 2 * (a @ b), rtol=1e-5)
