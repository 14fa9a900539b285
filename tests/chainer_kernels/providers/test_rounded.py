"""Products and convolutions in bfloat16, by instructions and without any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import providers
from chainer_kernels.bfloat16 import rounded
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import blas
from tests.chainer_kernels.providers.test_onednn import WAYS, convolutions, of_rows, way
from tests.support import kernels
from tests.support.bfloat16 import in_bfloat16


def provider():
    return providers.of("bfloat16")


def assert_close(ours, right, terms):
    """Compares sums that differ by the order of additions alone.

    Args:
        ours: Sums in float32.
        right: The same sums in float64.
        terms: The sums of the absolute values of the terms.
    """
    assert ours.dtype == np.float32
    bound = 2e-6 * terms + 1e-30
    assert (np.abs(ours - right) <= bound).all(), np.abs((ours - right) / bound).max()


@given(convolutions(), kernels.seeds, st.booleans(), st.booleans())
@in_bfloat16
def test_convolution(convolution, seed, has_bias, relu):
    geometry, *shapes = convolution
    if min(shapes[-1][1:]) <= 0:
        return
    x, W, gy = (kernels.arrays(s, (seed + i) % 2**32) for i, s in enumerate(shapes))
    b = gy[0, 0].reshape(-1)[: len(W)].copy() if has_bias and len(gy) else None

    def each(provider, x, W, gy):
        yield provider.convolution(x, W, b, geometry, relu)
        yield provider.convolution_data(gy, W, geometry, x.shape[1:-1])
        yield provider.convolution_weights(x, gy, geometry)
        before = np.ones_like(W)
        yield provider.convolution_weights(x, gy, geometry, before, accumulate=True)
        if provider.turns_weights(x.shape, gy.shape, geometry):
            turned = np.empty_like(W)
            provider.add_turned_weights(x, gy, geometry, turned, is_first=True)
            provider.add_turned_weights(x, gy, geometry, turned, is_first=False)
            provider.turn_weights_back(turned)
            yield turned / 2

    arrays = [rounded(a) for a in (x, W, gy)]
    right = list(each(blas, *arrays))
    terms = list(each(blas, *map(np.abs, arrays)))
    for i, ours in enumerate(each(provider(), x, W, gy)):
        i = min(i, 2) if i == 4 else i
        bias = 0 if b is None else np.abs(b).max(initial=0)
        assert_close(ours, right[i], terms[i] + bias + 1e-3)


size = st.sampled_from([1, 2, 130, 200])


@given(way, way, of_rows, size, size, size, st.booleans(), kernels.seeds)
@in_bfloat16
def test_product(left, right, result, m, n, k, accumulate, seed):
    a, b = kernels.arrays((m, k), seed), kernels.arrays((k, n), seed // 2)
    operands = WAYS[left](a), WAYS[right](b)
    exact = [rounded(each).astype("d") for each in (a, b)]
    terms = np.abs(exact[0]) @ np.abs(exact[1]) + accumulate
    assert_close(provider().product(*operands), exact[0] @ exact[1], terms)
    out = WAYS[result](np.full((m, n), 1 if accumulate else np.nan, "f"))
    ready = provider().as_operand(operands[1])
    assert provider().product(operands[0], ready, out, accumulate) is out
    assert_close(out, exact[0] @ exact[1] + accumulate, terms)


@given(size, size, size, st.booleans(), kernels.seeds)
@in_bfloat16
def test_product_with_weights(m, n, k, is_transposed, seed):
    a = kernels.arrays((m, k), seed)
    W = kernels.arrays((n, k) if is_transposed else (k, n), seed // 2)
    x, w = rounded(a).astype("d"), rounded(W).astype("d")
    w = w.T if is_transposed else w
    terms = np.abs(x) @ np.abs(w)
    ours = provider().product_with_weights(a, W, is_transposed)
    assert_close(ours, x @ w, terms)
    bias = kernels.arrays((n,), seed // 3)
    ours = provider().product_with_weights(a, W, is_transposed, bias)
    # A bias is not rounded.
    assert_close(ours, x @ w + bias, terms + np.abs(bias))


STACKS = [
    ((3, 2), (3, 2)),
    ((2, 1), (5,)),
    ((), (4,)),
    ((1,), (4, 1)),
]


@pytest.mark.parametrize("leading", STACKS)
@pytest.mark.parametrize("m, k, n", [(64, 96, 80), (3, 4, 5), (1, 600, 700)])
@pytest.mark.parametrize("order", ["rows", "columns", "gaps"])
@in_bfloat16
def test_product_of_stacks(leading, m, k, n, order):
    a, b = (
        kernels.arrays((*ahead, *sizes), i)
        for i, (ahead, sizes) in enumerate(zip(leading, [(m, k), (k, n)]))
    )
    exact = [rounded(each).astype("d") for each in (a, b)]
    if order == "columns":
        a, b = (x.swapaxes(-1, -2).copy().swapaxes(-1, -2) for x in (a, b))
    elif order == "gaps":
        a, b = (np.repeat(x, 2, axis=-1)[..., ::2] for x in (a, b))
    y = provider().product_of_stacks(a, b)
    if y is None:
        return
    assert y.shape == (exact[0] @ exact[1]).shape
    assert_close(y, exact[0] @ exact[1], np.abs(exact[0]) @ np.abs(exact[1]))


@in_bfloat16
def test_infinities_and_what_is_no_number():
    a, b = np.ones((128, 128), "f"), np.ones((128, 128), "f")
    a[0, 0], a[1, 1], b[2, 2] = np.nan, np.inf, -3.4e38
    # NumPy may warn of an infinity times zero.
    with np.errstate(invalid="ignore"):
        y = provider().product(a, b)
    assert np.isnan(y[0]).all() and np.isposinf(y[1][[0, 1, 3]]).all()
    # It rounds to infinity.
    assert np.isneginf(y[3:, 2]).all() and np.isfinite(y[3:, 3:]).all()


TINY = 2.0**-126


@pytest.mark.parametrize("exponents", [(-130, 20), (-66, -66), (-126, 0), (0, 0)])
@in_bfloat16
def test_subnormal_numbers_may_count_as_zero(exponents):
    """An operand, a product or a sum below 2^-126 may be lost, and no more."""
    k = 128
    a, b = (
        np.ldexp(kernels.arrays((k, k), i), exponent)
        for i, exponent in enumerate(exponents)
    )
    left, right = (rounded(each).astype("d") for each in (a, b))
    ours = provider().product(a, b)
    lost = TINY * (np.abs(left).sum(1)[:, None] + np.abs(right).sum(0) + 2 * k)
    bound = 2e-6 * (np.abs(left) @ np.abs(right)) + lost
    assert (np.abs(ours - left @ right) <= bound).all()


GEOMETRY = Geometry((3, 3), (1, 1), (1, 1), (1, 1))


@in_bfloat16
def test_same_bits_each_time():
    x, W = kernels.arrays((4, 8, 8, 16), 0), kernels.arrays((32, 16, 3, 3), 1)
    runs = [provider().convolution(x, W, None, GEOMETRY) for _ in range(2)]
    np.testing.assert_array_equal(*runs)


def test_without_instructions_one_warning(monkeypatch):
    monkeypatch.setattr(providers, "bfloat16_instructions", lambda: None)
    providers._in_bfloat16.cache_clear()
    try:
        with pytest.warns(
            RuntimeWarning, match="slower here than in float32"
        ) as caught:
            found = [providers.of("bfloat16") for _ in range(2)]
        assert len(caught) == 1 and found[0].NAME == "rounded operands"
    finally:
        providers._in_bfloat16.cache_clear()
