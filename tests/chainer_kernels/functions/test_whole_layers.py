"""Layers in whole numbers: the same bits whichever way is chosen."""

import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import whole_numbers
from chainer_kernels.functions import whole_layers
from chainer_kernels.functions.whole_layers import Inputs, Weights
from chainer_kernels.geometry import Geometry
from tests.support.whole_numbers import choose, convolved_in_numpy, in_numpy, offer


@pytest.fixture
def anywhere(monkeypatch):
    offer(monkeypatch)
    return monkeypatch


@pytest.mark.parametrize("n_inputs", [1, 511, 512, 513, 2000])
@pytest.mark.parametrize("weight", [-128, 127])
def test_products_in_float32_are_exact(n_inputs, weight):
    x = np.full((3, n_inputs), 255, np.uint8)
    W = np.full((5, n_inputs), weight, np.int8)
    # Odd sums, which float32 would round beyond 2^24.
    x[0, 0], W[1, 0] = 254, weight // 2
    found = whole_layers.product_in_float32(x, W)
    np.testing.assert_array_equal(found, in_numpy(x, W))


@given(
    *(st.integers(1, 70) for _ in range(3)),
    st.integers(0, 2**32 - 1),
)
def test_products_in_float32_are_those_of_numpy(m, k, n, seed):
    random = np.random.RandomState(seed)
    x = random.randint(0, 256, (m, k)).astype(np.uint8)
    W = random.randint(-128, 128, (n, k)).astype(np.int8)
    found = whole_layers.product_in_float32(x, W)
    np.testing.assert_array_equal(found, in_numpy(x, W))


INPUTS = Inputs(0.03, 100, 255)


def case(n_rows, n_inputs, n_outputs, is_signed, is_each):
    random = np.random.RandomState(0)
    low, high = (-127, 128) if is_signed else (0, 256)
    whole = random.randint(low, high, (n_outputs, n_inputs))
    n_scales = n_outputs if is_each else 1
    scale = random.uniform(0.01, 0.02, (n_scales, 1)).astype("f")
    zero = np.zeros((n_scales, 1), "f")
    if not is_signed:
        zero += random.randint(0, 256, zero.shape)
    weights = Weights(whole.astype(np.int8 if is_signed else np.uint8), scale, zero)
    x = np.asarray(random.standard_normal((n_rows, n_inputs)), "f")
    return x, weights, np.asarray(random.standard_normal(n_outputs), "f")


def expected(x, weights, b):
    scale, zero, highest = INPUTS
    whole = np.floor(x / np.float32(scale) + np.float32(0.5)) + np.float32(zero)
    real = (whole.clip(0, highest).astype(float) - zero) * scale
    return real @ ((weights.whole - weights.zero.astype(float)) * weights.scale).T + b


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("is_each", [True, False])
@pytest.mark.parametrize("shape", [(8, 20, 5), (3, 1500, 40), (64, 300, 7)])
def test_both_ways_give_the_same_bits(anywhere, shape, is_signed, is_each):
    x, weights, b = case(*shape, is_signed, is_each)
    found = []
    for is_whole in (True, False):
        choose(x.shape, weights.whole.shape, is_whole)
        found.append(whole_layers.linear(x, INPUTS, weights, b))
    np.testing.assert_array_equal(*found)
    right = expected(x, weights, b)
    np.testing.assert_allclose(found[0], right, atol=1e-6 * np.abs(right).max())
    choose((1, shape[1]), weights.whole.shape, False)
    rows = [whole_layers.linear(row[None], INPUTS, weights, b) for row in x]
    np.testing.assert_array_equal(np.concatenate(rows), found[0])


def test_the_first_call_with_a_shape_measures(anywhere):
    x, weights, _ = case(8, 20, 5, True, True)
    found = [whole_layers.linear(x, INPUTS, weights, None) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    choice = whole_layers.choice_of((8, 20), (5, 20), None)
    assert choice[:3] == ((8, 20), (5, 20), None)
    assert whole_layers.choice_of((7, 20), (5, 20), None) is None
    assert choice.ms_whole > 0 < choice.ms_float32
    assert choice.is_whole == (choice.ms_whole < choice.ms_float32)


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_faster_computes(anywhere, is_whole):
    called = []
    for module, name in (
        (whole_numbers, "product"),
        (whole_layers, "product_in_float32"),
    ):
        compute = getattr(module, name)

        def noted(*arguments, name=name, compute=compute):
            called.append(name)
            return compute(*arguments)

        anywhere.setattr(module, name, noted)
    x, weights, b = case(8, 20, 5, True, True)
    choose(x.shape, weights.whole.shape, is_whole)
    whole_layers.linear(x, INPUTS, weights, b)
    assert called == ["product" if is_whole else "product_in_float32"]


def test_a_row_with_what_is_no_number_gives_no_numbers(anywhere):
    x, weights, b = case(8, 20, 5, True, True)
    right = whole_layers.linear(x, INPUTS, weights, b)
    x[3, 4] = np.nan
    found = whole_layers.linear(x, INPUTS, weights, b)
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(right, 3, 0))


def test_no_samples_give_no_outputs(anywhere):
    x, weights, b = case(0, 20, 5, True, True)
    assert whole_layers.linear(x, INPUTS, weights, b).shape == (0, 5)
    assert whole_layers._choices == {}


def test_offered_where_sums_have_32_bits(anywhere):
    assert whole_layers.is_offered((5, 32768))
    assert not whole_layers.is_offered((5, 32769))
    assert whole_layers.is_offered((5, 64, 22, 22))
    assert not whole_layers.is_offered((5, 1, 23, 23))
    anywhere.setattr(whole_numbers, "instructions", lambda: None)
    assert not whole_layers.is_offered((5, 8))


CONVOLUTIONS = {
    "padded": ((2, 5, 7, 6), (8, 5, 3, 3), Geometry((3, 3), (1, 1), (1, 2), (1, 1))),
    "strides": ((3, 4, 9, 8), (6, 4, 3, 2), Geometry((3, 2), (2, 3), (0, 1), (1, 1))),
    "dilated": ((2, 16, 9, 9), (3, 16, 2, 2), Geometry((2, 2), (1, 1), (1, 0), (3, 2))),
    "groups": (
        (2, 90, 6, 6),
        (8, 45, 5, 5),
        Geometry((5, 5), (1, 1), (2, 2), (1, 1), 2),
    ),
    "many": ((1, 300, 5, 5), (9, 300, 3, 3), Geometry((3, 3), (1, 1), (1, 1), (1, 1))),
    "points": ((4, 64, 5, 5), (64, 64, 1, 1), Geometry((1, 1), (1, 1), (0, 0), (1, 1))),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_both_ways_give_the_same_bits_of_convolutions(anywhere, name):
    x_shape, W_shape, geometry = CONVOLUTIONS[name]
    random = np.random.RandomState(0)
    x = np.asarray(random.standard_normal(x_shape), "f")
    whole = random.randint(-127, 128, W_shape).astype(np.int8)
    scale = random.uniform(0.01, 0.02, (len(whole), 1, 1, 1)).astype("f")
    weights = Weights(whole, scale, np.zeros_like(scale))
    b = np.asarray(random.standard_normal(len(whole)), "f")
    found = []
    for is_whole in (True, False):
        choose(x_shape, W_shape, is_whole, geometry)
        found.append(whole_layers.convolution(x, INPUTS, weights, b, geometry))
    np.testing.assert_array_equal(*found)
    rounded = np.floor(x / np.float32(INPUTS.scale) + np.float32(0.5)).clip(-100, 155)
    right = F.convolution_2d(
        rounded.astype(float) * INPUTS.scale,
        (whole * scale.astype(float)),
        b.astype(float),
        geometry.stride,
        geometry.pad,
        dilate=geometry.dilation,
        groups=geometry.groups,
    ).array
    np.testing.assert_allclose(found[0], right, atol=1e-6 * np.abs(right).max())
    (one,) = whole_layers.convolution(x[:1], INPUTS, weights, b, geometry)
    np.testing.assert_array_equal(one, found[0][0])
    # What reads a NaN is NaN, and nothing else.
    x[-1, 0, 2, 3] = np.nan
    lost = whole_layers.convolution(x, INPUTS, weights, b, geometry)
    with np.errstate(invalid="ignore"):
        reads = F.convolution_2d(
            np.isnan(x).astype("f"),
            np.ones(W_shape, "f"),
            None,
            geometry.stride,
            geometry.pad,
            dilate=geometry.dilation,
            groups=geometry.groups,
        ).array
    np.testing.assert_array_equal(np.isnan(lost), reads > 0)
    np.testing.assert_array_equal(lost[reads == 0], found[0][reads == 0])


@pytest.mark.parametrize("n_channels", [1, 57, 200])
def test_convolutions_in_float32_are_exact(n_channels):
    x = np.full((1, 4, 4, n_channels), 255, np.uint8)
    x[0, 1, 1, 0] = 254
    W = np.full((2, n_channels, 3, 3), 127, np.int8)
    W[1] = -128
    geometry = Geometry((3, 3), (1, 1), (0, 0), (1, 1))
    found = whole_layers.convolution_in_float32(x, W, geometry)
    np.testing.assert_array_equal(found, convolved_in_numpy(x, W, geometry))
