"""Products of matrices in bfloat16 by AMX, at the edges of its tiles."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import providers, threads
from chainer_kernels.bfloat16 import CODES, narrowed, rounded
from chainer_kernels.providers import amx_products
from tests.chainer_kernels.providers.test_onednn import WAYS, of_rows, way
from tests.support import kernels

has_amx = providers.bfloat16_instructions() == "AMX" and amx_products.is_usable()
pytestmark = pytest.mark.skipif(not has_amx, reason="the processor has no AMX")

size = st.sampled_from([1, 15, 16, 17, 31, 32, 33, 47, 50, 64, 79])


@given(way, way, of_rows, size, size, size, st.booleans(), kernels.seeds)
def test_product(left, right, result, m, n, k, accumulate, seed):
    a, b = kernels.arrays((m, k), seed), kernels.arrays((k, n), seed // 2)
    exact = rounded(a).astype("d") @ rounded(b).astype("d")
    bound = 2e-6 * (np.abs(a) @ np.abs(b) + 1)
    operands = WAYS[left](a), WAYS[right](b)
    y = amx_products.product(*operands)
    assert (np.abs(y - exact) <= bound).all()
    ready = amx_products.left(operands[0]), amx_products.right(operands[1])
    np.testing.assert_array_equal(amx_products.product(*ready), y)
    out = WAYS[result](np.full((m, n), 1 if accumulate else np.nan, "f"))
    assert amx_products.product(*operands, out, accumulate) is out
    assert (np.abs(out - accumulate - exact) <= bound).all()
    bias = kernels.arrays((n,), seed)
    y = amx_products.product(*operands, bias=bias)
    assert (np.abs(y - bias - exact) <= bound).all()


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(64, 64), (33, 65), (1, 1)])
def test_tiles_hold_the_numbers_that_narrowing_gives(shape, order):
    a = kernels.arrays(shape, 0, order)
    a.flat[0] = np.nan
    n_lines, n_inner = (-(-n // width) for n, width in zip(shape, (16, 32)))
    whole = np.zeros((16 * n_lines, 32 * n_inner), CODES)
    whole[: shape[0], : shape[1]] = narrowed(a)
    lines = whole.reshape(n_lines, 16, n_inner, 32).swapaxes(1, 2)
    tiles = amx_products.left(a).tiles.view(CODES)
    np.testing.assert_array_equal(tiles, lines.ravel())
    # Pairs of numbers of a line are below each other.
    pairs = lines.reshape(n_lines, n_inner, 16, 16, 2).swapaxes(2, 3)
    np.testing.assert_array_equal(
        amx_products.right(a.T).tiles.view(CODES), pairs.ravel()
    )


def test_out_whose_columns_have_gaps_is_written():
    a, b = kernels.arrays((20, 40), 0), kernels.arrays((40, 30), 1)
    wide = np.zeros((20, 60), "f")
    out = wide[:, ::2]
    for n in (1, 2):
        assert amx_products.product(a, b, out, accumulate=n > 1) is out
        np.testing.assert_allclose(out, n * amx_products.product(a, b), rtol=1e-6)
    assert not wide[:, 1::2].any()


def test_empty_matrices():
    for m, k, n in [(0, 40, 30), (20, 0, 30), (20, 40, 0)]:
        a, b = np.ones((m, k), "f"), np.ones((k, n), "f")
        np.testing.assert_array_equal(amx_products.product(a, b), a @ b)


@pytest.mark.parametrize("shape", [(200, 100, 90), (90, 100, 200), (20, 70, 2000)])
def test_two_cores_compute_what_one_does(shape, monkeypatch):
    m, k, n = shape
    a, b = kernels.arrays((m, k), 0), kernels.arrays((k, n), 1)
    on_one = amx_products.product(a, b)
    monkeypatch.setattr(threads, "SMALLEST_SHARE", 1)
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)
    shares = mock.Mock(side_effect=threads._share)
    monkeypatch.setattr(threads, "_share", shares)
    np.testing.assert_array_equal(amx_products.product(a, b), on_one)
    # Both operands and the product.
    assert shares.call_count == 6


@pytest.mark.parametrize("k", [300, 3000])
def test_bits_do_not_depend_on_what_stays_in_the_cache(k):
    """Sums of many numbers are written and read between two parts of them."""
    a, b = kernels.arrays((50, k), 0), kernels.arrays((k, 900), 1)
    bias = kernels.arrays((900,), 2)
    y = amx_products.product(a, b, bias=bias)
    for columns in (slice(32), slice(32, 64), slice(850, 900)):
        part = amx_products.product(a, b[:, columns], bias=bias[columns])
        np.testing.assert_array_equal(y[:, columns], part)
    exact = rounded(a).astype("d") @ rounded(b).astype("d") + bias
    bound = 2e-6 * (np.abs(a) @ np.abs(b) + 1)
    assert (np.abs(y - exact) <= bound).all()
