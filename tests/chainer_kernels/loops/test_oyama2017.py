"""Each loop of Algorithm 1 has the bits of the steps one after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import float8
from chainer_kernels.loops import oyama2017

EPSILON = np.float32(1e-5)
MOST = np.finfo(np.float32).max

singles = st.lists(
    st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=40
)
scales = st.floats(2.0**-126, 2.0**126, width=32)


def saturated(values, of):
    return np.where(
        np.isinf(values) & np.isfinite(of), np.copysign(MOST, values), values
    ).astype("f")


def by_steps(gradient, weights, scale, rounding):
    """Divides, scales and encodes with NumPy, an array at a time."""
    with np.errstate(all="ignore"):
        ratio = saturated(gradient / (np.abs(weights) + EPSILON), gradient)
        scaled = saturated(ratio * np.float32(scale), ratio)
    return float8.encode(scaled, rounding=rounding)


@given(singles, scales, st.sampled_from(float8.ROUNDINGS))
def test_encoding_of_ratios(pairs, scale, rounding):
    gradient, weights = np.array(pairs, "f").T.copy()
    codes = np.empty(gradient.size, np.uint8)
    oyama2017.encode_ratios(
        gradient, weights, EPSILON, np.float32(scale), rounding == "truncate", codes
    )
    expected = by_steps(gradient, weights, scale, rounding)
    # The sign of a number that is none has no meaning.
    is_nan = np.isnan(float8.decode(expected))
    assert np.isnan(float8.decode(codes[is_nan])).all()
    np.testing.assert_array_equal(codes[~is_nan], expected[~is_nan])


@pytest.mark.parametrize("rounding", float8.ROUNDINGS)
def test_encoding_of_many_ratios(rounding):
    random = np.random.RandomState(0)
    bits = random.randint(0, 2**32, (2, 100_000), dtype=np.uint64).astype(np.uint32)
    gradient, weights = (np.nan_to_num(each.view("f")) for each in bits)
    codes = np.empty(gradient.size, np.uint8)
    for scale in (1e-20, 1.0, 3e7):
        oyama2017.encode_ratios(
            gradient, weights, EPSILON, np.float32(scale), rounding == "truncate", codes
        )
        np.testing.assert_array_equal(
            codes, by_steps(gradient, weights, scale, rounding)
        )


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), scales)
def test_decoding_of_ratios(codes, scale):
    codes = np.array(codes, np.uint8)
    random = np.random.RandomState(codes.size)
    weights = random.standard_normal(codes.size).astype("f")
    out = np.empty(codes.size, np.float32)
    oyama2017.decode_ratios(codes, weights, EPSILON, np.float32(scale), out)
    with np.errstate(over="ignore"):
        back = float8.decode(codes) * np.float32(scale)
        expected = back * (np.abs(weights) + EPSILON)
    np.testing.assert_array_equal(out, expected)
