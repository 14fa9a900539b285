"""Every wire dtype rounds as its entry says."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.communication.wire import WIRE

names = st.sampled_from(sorted(WIRE))
blocks = st.sampled_from([16, 48, 256])


@st.composite
def values(draw):
    """Numbers whose magnitudes differ between blocks as far as float32 goes."""
    n = draw(st.integers(0, 600))
    random = np.random.RandomState(draw(st.integers(0, 2**32 - 1)))
    exponent = draw(st.integers(-145, 120))
    spread = draw(st.sampled_from([0, 4, 40]))
    found = random.standard_normal(n) * 2.0 ** (
        exponent + spread * random.uniform(-1, 1, n)
    )
    found[random.uniform(size=n) < draw(st.sampled_from([0, 0.5, 1]))] = 0
    return np.clip(found, -3e38, 3e38).astype("f")


@given(names, values(), blocks)
def test_one_rounding_keeps_to_its_bound(name, x, block):
    wire = WIRE[name]
    message = wire.encode(x, block)
    assert message.size == wire.n_bytes(x.size, block)
    found = wire.decode(message, x.size, block)
    bound = wire.bound(x, block) + 2.0**-22 * np.abs(x) + 2.0**-149
    if name == "fp16":
        # It has no scales, and saturates.
        x = np.clip(x, -65504, 65504)
    assert (np.abs(found.astype("d") - x) <= bound).all()
    doubled = wire.decode(message, x.size, block, out=found.copy(), add=True)
    np.testing.assert_array_equal(doubled, found + found)


@given(names, values(), blocks)
def test_blocks_are_coded_alone(name, x, block):
    wire = WIRE[name]
    whole = wire.decode(wire.encode(x, block), x.size, block)
    parts = [x[i : i + 2 * block] for i in range(0, x.size, 2 * block)]
    apart = [wire.decode(wire.encode(p, block), p.size, block) for p in parts]
    np.testing.assert_array_equal(whole, np.concatenate([*apart, x[:0]]))


@pytest.mark.parametrize(
    ("name", "dtype", "top"),
    [("e5m2", ml_dtypes.float8_e5m2, 14), ("e4m3", ml_dtypes.float8_e4m3fn, 7)],
)
def test_small_floats_are_those_of_ml_dtypes(name, dtype, top):
    # A block whose scale is 1, with every tie and its neighbours.
    ties = np.arange(0, 2**31, 2**17, dtype=np.uint32)[:, None] + np.uint32([0, 1, 3])
    x = ties.ravel().view("f")
    x = x[x < 2.0**top * 2]
    x = np.concatenate([x, [2.0**top]]).astype("f")
    wire = WIRE[name]
    found = wire.decode(wire.encode(x, x.size), x.size, x.size)
    np.testing.assert_array_equal(found, x.astype(dtype).astype("f"))


def test_half_floats_are_those_of_numpy():
    x = np.random.RandomState(0).standard_normal(1000).astype("f") * 1000
    halves = WIRE["fp16"].encode(x, 16).view(np.float16)
    np.testing.assert_array_equal(halves, x.astype(np.float16))
    brains = WIRE["bf16"].encode(x, 16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(brains, x.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_bound_holds_for_subnormal_numbers_too(name):
    wire = WIRE[name]
    # From a quarter of the least positive number on, over all that are subnormal.
    x = np.geomspace(wire.least / 2, 2.0**12 * wire.least, 4001).astype("f")
    found = wire.decode(wire.encode(x, 16), x.size, 16)
    errors = np.abs(found.astype("d") - x)
    assert (errors <= wire.bound(x, 16)).all()
    assert errors.max() > 0.9 * wire.least


@pytest.mark.parametrize("name", sorted({*WIRE} - {"fp32"}))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_not_encoded(name, value):
    wire, x = WIRE[name], np.linspace(-1, 1, 75, dtype="f")
    x[70] = value
    message = np.full(wire.n_bytes(75, 16), 255, np.uint8)
    assert not wire.write(x, 16, wire.fields(message, 75, 16))
    assert not message.any()


def test_4_bits_are_packed_in_pairs_with_a_scale_for_32():
    wire = WIRE["int4"]
    x = np.arange(-3, 36, dtype="f")
    message = wire.encode(x, 256)
    assert message.size == wire.n_bytes(39, 256) == 2 * 4 + 20
    scales, codes = wire.fields(message, 39, 256)
    assert scales.tolist() == [28, 35]
    levels = np.concatenate([np.rint(x[:32] / 4), np.rint(x[32:] / 5)])
    packed = levels.astype(int) & 15
    expected = packed[::2] + 16 * np.append(packed[1::2], 0)
    assert codes.tolist() == expected.tolist()


@given(names, values(), blocks, st.integers(0, 9))
def test_parts_of_a_message_are_those_of_its_elements(name, x, block, first):
    wire, start = WIRE[name], min(first * block, x.size // block * block)
    fields = wire.fields(wire.encode(x, block), x.size, block)
    part = wire.part(fields, slice(start, x.size), block)
    found = np.empty(x.size - start, "f")
    wire.read(part, block, found)
    expected = wire.decode(wire.encode(x, block), x.size, block)[start:]
    np.testing.assert_array_equal(found, expected)
