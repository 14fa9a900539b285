"""Arrays in narrow numbers: what is narrowed, what is not, and what arrives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.layouts import memory_order
from divisible.communication import narrowing
from divisible.communication.narrowing import arrived
from divisible.communication.wire import BLOCK, WIRE
from tests.support.kernels import in_order, orders

NARROW = sorted({*WIRE} - {"fp32"})


@given(
    st.sampled_from(NARROW),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(["float16", "float32", "int32", "uint8", "bool"]),
    orders,
    st.integers(0, 2**32 - 1),
)
def test_arrays_arrive_in_their_shape_dtype_and_order(name, shape, dtype, order, seed):
    values = np.random.RandomState(seed).normal(scale=50, size=shape)
    array = in_order(np.asarray(values).astype(dtype), order)
    found = arrived(array, name)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    if memory_order(array) is not None:
        assert memory_order(found) == memory_order(array)
    is_whole = array.dtype.kind != "f" or WIRE[name].bits >= 8 * array.itemsize
    if is_whole:
        np.testing.assert_array_equal(found, array)
    elif array.size:
        # A scale serves some of the neighbours in memory, so no more than all.
        bound = WIRE[name].bound(np.abs(array).ravel(), array.size * BLOCK).max()
        rounding = 2.0**-10 if dtype == "float16" else 2.0**-22
        largest = np.abs(array).max()
        difference = np.abs(found.astype("d") - array.astype("d")).max()
        assert difference <= bound + rounding * largest + 2.0**-24


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_arrive_as_they_are(name, value):
    array = np.linspace(-3, 3, 700, dtype=np.float32)
    array[333] = value
    assert narrowing.encoded(array, WIRE[name]) is None
    np.testing.assert_array_equal(arrived(array, name), array)


def test_numbers_beyond_float16_arrive_as_they_are():
    array = np.float32([1, -65504, 3])
    assert narrowing.encoded(array, WIRE["fp16"]) is not None
    array[1] = -65505
    assert narrowing.encoded(array, WIRE["fp16"]) is None
    assert narrowing.encoded(array, WIRE["bf16"]) is not None


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_largest_numbers_arrive_finite(name, dtype):
    array = np.float64([1, 0.99, 0.95, 0.93, 0.9, -1]) * np.finfo(dtype).max
    found = arrived(array.astype(dtype), name)
    assert np.isfinite(found).all()
    assert np.abs(found / array - 1).max() < 1 / 7


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128", "longdouble"])
def test_wide_numbers_are_refused(dtype):
    array = np.ones(3, dtype)
    with pytest.raises(TypeError, match=f"{array.dtype} cannot travel in 'int8'.*cast"):
        narrowing.encoded(array, WIRE["int8"])


def test_pairs():
    assert narrowing.pair_of("int8") == ("int8", "int8")
    assert narrowing.pair_of(["int8", "bf16"]) == ("int8", "bf16")
    with pytest.raises(ValueError, match="one name, or two for activations and grad"):
        narrowing.pair_of(("int8", "int8", "int8"))
    with pytest.raises(ValueError, match="message_dtype of gradients must be one of"):
        narrowing.pair_of(("int8", "float16"))
    with pytest.raises(ValueError, match="message_dtype must be one of .* not 8"):
        narrowing.pair_of(8)


def test_skips_have_the_fewest_bits_of_the_edges_on_their_way():
    edges = [("fp32", "fp32"), ("bf16", "int8"), ("int4", "fp32")]
    assert narrowing.over(edges, 0, 1) == ("fp32", "fp32")
    assert narrowing.over(edges, 0, 2) == ("bf16", "int8")
    assert narrowing.over(edges, 0, 3) == ("int4", "int8")
