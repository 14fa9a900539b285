"""The e5m2 codec against ml_dtypes, bit for bit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import float8

EVERY_HALF = np.arange(65536, dtype=np.uint16).view(np.float16)
EVERY_CODE = np.arange(256, dtype=np.uint8)


def reference(x, scale=1.0):
    """ml_dtypes, and the documented rule for what it turns into infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = x.astype(np.float32) * np.float32(scale)
        codes = scaled.astype(ml_dtypes.float8_e5m2).view(np.uint8)
    saturated = np.isfinite(x) & (codes & 0x7F >= 0x7C)
    codes[saturated] = codes[saturated] & 0x80 | 0x7B
    nan = np.isnan(x)
    codes[nan] = codes[nan] & 0x80 | 0x7E
    return codes


def every_exponent(n):
    """Float32 bit patterns: random ones, and the neighbourhood of every tie."""
    rng = np.random.RandomState(0)
    random = rng.randint(0, 2**32, n, dtype=np.uint64).astype(np.uint32)
    near_ties = np.arange(0, 2**32, 2**20, dtype=np.uint64)[:, None] + [-1, 0, 1]
    return np.concatenate([random, near_ties.ravel().astype(np.uint32)]).view("f")


@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 2.0**12, 0.3, 1e30])
@pytest.mark.parametrize("values", [EVERY_HALF, every_exponent(500_000)])
def test_encode(values, scale):
    np.testing.assert_array_equal(
        float8.encode(values, scale), reference(values, scale)
    )


@pytest.mark.parametrize("scale", [1.0, 2.0**12, 0.3])
def test_truncation_drops_the_lower_byte_of_a_half(scale):
    values = every_exponent(200_000)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * np.float32(scale)
        halves = scaled.astype(np.float16).view(np.uint16)
    codes = (halves >> 8).astype(np.uint8)
    finite = np.isfinite(values)
    saturated = finite & (codes & 0x7F > 0x7B)
    codes[saturated] = codes[saturated] & 0x80 | 0x7B
    found = float8.encode(values, scale, rounding="truncate")
    np.testing.assert_array_equal(found[finite], codes[finite])
    with pytest.raises(ValueError, match="'nearest' or 'truncate', not 'up'"):
        float8.encode(values, rounding="up")


def test_not_a_number_is_canonical():
    nan = np.array([0x7FC00000, 0xFF800001], np.uint32).view(np.float32)
    assert float8.encode(nan).tolist() == [0x7E, 0xFE]
    assert float8.encode(np.array([np.inf, -np.inf], "f")).tolist() == [0x7C, 0xFC]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("scale", [1.0, 0.3, 2.0**-8])
def test_decode(dtype, scale):
    exact = EVERY_CODE.view(ml_dtypes.float8_e5m2).astype(np.float32)
    expected = (exact * np.float32(scale)).astype(dtype)
    np.testing.assert_array_equal(
        float8.decode(EVERY_CODE, scale, dtype=dtype), expected
    )


def test_codes_survive():
    codes = EVERY_CODE[(EVERY_CODE & 0x7F) <= 0x7C]
    for dtype in (np.float32, np.float16):
        again = float8.encode(float8.decode(codes, dtype=dtype))
        np.testing.assert_array_equal(again, codes)


@given(st.floats(width=32), st.sampled_from([1.0, 0.25, 1024.0, 3.0]))
def test_any_number(value, scale):
    x = np.array([value], np.float32)
    np.testing.assert_array_equal(float8.encode(x, scale), reference(x, scale))


def test_shapes_and_out():
    x = np.random.RandomState(0).normal(size=(4, 6)).astype("f")
    assert float8.encode(x.T).shape == (6, 4)
    np.testing.assert_array_equal(float8.encode(x.T), float8.encode(x).T)
    out = np.empty((4, 6), np.uint8)
    assert float8.encode(x, out=out) is out
    values = np.empty((4, 6), np.float16)
    assert float8.decode(out, out=values) is values
    assert float8.encode(x[:0]).shape == (0, 6)


def test_bad_arguments():
    x, codes = np.ones(3, "f"), np.ones(3, np.uint8)
    with pytest.raises(TypeError, match="not float64"):
        float8.encode(x.astype("d"))
    with pytest.raises(TypeError, match="not float32"):
        float8.decode(x)
    with pytest.raises(TypeError, match="not float64"):
        float8.decode(codes, dtype="d")
    for scale in (0, -1, np.nan, np.inf, 1e-50):
        with pytest.raises(ValueError, match="positive and finite"):
            float8.encode(x, scale)
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        float8.encode(x, out=np.empty(4, np.uint8))
    with pytest.raises(ValueError, match="contiguous"):
        float8.decode(codes, out=np.empty(6, "f")[::2])


EVERY_PAIR = [each.ravel() for each in np.meshgrid(EVERY_CODE, EVERY_CODE)]


@pytest.mark.parametrize("rounding", float8.ROUNDINGS)
def test_sums_in_one_pass_are_those_of_the_steps(rounding):
    codes, others = EVERY_PAIR
    with np.errstate(invalid="ignore"):
        sums = float8.decode(codes) + float8.decode(others)
    expected = float8.encode(sums, rounding=rounding)
    found = float8.add(codes, others, rounding=rounding)
    np.testing.assert_array_equal(found, expected)
    out = np.empty_like(codes)
    assert float8.add(codes, others, out, rounding) is out
    np.testing.assert_array_equal(out, expected)
    # The sum may replace the first addend.
    changed = codes.copy()
    float8.add(changed, others, changed, rounding)
    np.testing.assert_array_equal(changed, expected)


def test_sums_of_any_shape_and_order():
    codes, others = (each[:600].reshape(3, 200)[:, ::2] for each in EVERY_PAIR)
    expected = float8.add(codes.ravel(), others.ravel())
    np.testing.assert_array_equal(float8.add(codes, others).ravel(), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((EVERY_CODE, EVERY_CODE[:5]), ValueError, r"\(256,\) and \(5,\) cannot"),
        ((EVERY_CODE, EVERY_CODE.view("i1")), TypeError, "NumPy's uint8, not int8"),
        ((EVERY_CODE, [1]), TypeError, "NumPy's uint8, not list"),
        ((EVERY_CODE, EVERY_CODE, np.empty(5, "u1")), ValueError, "contiguous array"),
        ((EVERY_CODE, EVERY_CODE, None, "up"), ValueError, "'truncate', not 'up'"),
    ],
)
def test_sums_that_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        float8.add(*arguments)
