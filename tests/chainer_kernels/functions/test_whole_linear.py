"""Linear functions in whole numbers: the same bits whichever way is chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.functions import whole_linear
from chainer_kernels.functions.whole_linear import Inputs, Weights
from chainer_kernels.providers import whole_numbers
from tests.support.whole_numbers import choose, in_numpy, offer


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
    found = whole_linear.product_in_float32(x, W)
    np.testing.assert_array_equal(found, in_numpy(x, W))


@given(
    *(st.integers(1, 70) for _ in range(3)),
    st.integers(0, 2**32 - 1),
)
def test_products_in_float32_are_those_of_numpy(m, k, n, seed):
    random = np.random.RandomState(seed)
    x = random.randint(0, 256, (m, k)).astype(np.uint8)
    W = random.randint(-128, 128, (n, k)).astype(np.int8)
    found = whole_linear.product_in_float32(x, W)
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
        choose(shape, is_whole)
        found.append(whole_linear.linear(x, INPUTS, weights, b))
    np.testing.assert_array_equal(*found)
    right = expected(x, weights, b)
    np.testing.assert_allclose(found[0], right, atol=1e-6 * np.abs(right).max())
    choose((1, *shape[1:]), False)
    rows = [whole_linear.linear(row[None], INPUTS, weights, b) for row in x]
    np.testing.assert_array_equal(np.concatenate(rows), found[0])


def test_the_first_call_with_a_shape_measures(anywhere):
    x, weights, _ = case(8, 20, 5, True, True)
    found = [whole_linear.linear(x, INPUTS, weights, None) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    (choice,) = whole_linear.choices()
    assert choice[:3] == (8, 20, 5)
    assert choice.ms_whole > 0 < choice.ms_float32
    assert choice.is_whole == (choice.ms_whole < choice.ms_float32)


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_faster_computes(anywhere, is_whole):
    called = []
    for module, name in (
        (whole_numbers, "product"),
        (whole_linear, "product_in_float32"),
    ):
        compute = getattr(module, name)

        def noted(*arguments, name=name, compute=compute):
            called.append(name)
            return compute(*arguments)

        anywhere.setattr(module, name, noted)
    choose((8, 20, 5), is_whole)
    x, weights, b = case(8, 20, 5, True, True)
    whole_linear.linear(x, INPUTS, weights, b)
    assert called == ["product" if is_whole else "product_in_float32"]


def test_a_row_with_what_is_no_number_gives_no_numbers(anywhere):
    x, weights, b = case(8, 20, 5, True, True)
    right = whole_linear.linear(x, INPUTS, weights, b)
    x[3, 4] = np.nan
    found = whole_linear.linear(x, INPUTS, weights, b)
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(right, 3, 0))


def test_no_samples_give_no_outputs(anywhere):
    x, weights, b = case(0, 20, 5, True, True)
    assert whole_linear.linear(x, INPUTS, weights, b).shape == (0, 5)
    assert whole_linear.choices() == []


def test_offered_where_sums_have_32_bits(anywhere):
    assert whole_linear.is_offered(32768)
    assert not whole_linear.is_offered(32769)
    anywhere.setattr(whole_numbers, "instructions", lambda: None)
    assert not whole_linear.is_offered(8)
