"""A GPU writes and reads gradients as the host does, bit for bit."""

import numpy as np
import pytest

from chainer_kernels.wire_gpu import FORMATS
from divisible.communication.wire import WIRE
from tests.support.gpu import NEEDS_GPU

pytestmark = NEEDS_GPU


def any_bits(random, n):
    found = random.randint(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view("f")
    return np.where(np.isfinite(found), found, np.float32(0))


def near_ties():
    """Every tie of every format, its neighbours, and all powers of two."""
    bits = np.arange(0, 255 << 23, 2**11, dtype=np.uint32)[:, None]
    found = (bits + np.array([0, 1, 2**11 - 1], np.uint32)).ravel().view("f")
    return np.concatenate([found, -found])


def with_one(value):
    found = np.random.RandomState(3).standard_normal(1000).astype("f")
    found[700] = value
    return found


def cases():
    random = np.random.RandomState(0)
    normal = random.standard_normal(30_001)
    scales = np.repeat(random.uniform(-149, 120, 301), 100)[: normal.size]
    return {
        "normal": normal.astype("f"),
        "any bits": any_bits(random, 100_000),
        "near ties": near_ties(),
        "subnormal": (normal * 2.0**-140).astype("f"),
        "huge": np.clip(normal * 2.0**127, -3.4e38, 3.4e38).astype("f"),
        "other magnitudes in each block": (normal * 2.0**scales).astype("f"),
        "other magnitudes in a block": (
            normal * 2.0 ** random.uniform(-80, 80, normal.size)
        ).astype("f"),
        "zeros": np.array([0.0, -0.0] * 400, "f"),
        "one": np.array([-3.3], "f"),
        "NaN": with_one(np.nan),
        "infinity": with_one(np.inf),
        "minus infinity": with_one(-np.inf),
        "more than a grid of one block": normal[:16].repeat(2**17).astype("f"),
    }


CASES = cases()


def close(found, expected, where):
    """Equal, but for subnormal numbers, which CuPy's own arithmetic takes as zero."""
    tiny = np.finfo("f").tiny
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~is_finite], expected[~is_finite], str(where))
    difference = np.abs(found[is_finite] - expected[is_finite])
    assert difference.max(initial=0) < 2 * tiny, where
    is_large = is_finite & (np.abs(expected) > 2**26 * tiny)
    np.testing.assert_array_equal(found[is_large], expected[is_large], str(where))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["fp32", *FORMATS])
def test_bits_are_those_of_the_host(name, case):
    import cupy

    wire, values = WIRE[name], CASES[case]
    n, on_device = values.size, cupy.asarray(values)
    for block in (16, 48, 256, 1008):
        message = np.zeros(wire.n_bytes(n, block), np.uint8)
        its = cupy.ones(message.size, np.uint8)
        for share in (0.0, 1 / 3, 1.0):
            fields = wire.fields(message, n, block)
            is_finite = wire.write(values, block, fields, share)
            of_device = wire.fields(its, n, block)
            assert bool(wire.write(on_device, block, of_device, share)) == is_finite
            where = block, share
            if name == "fp32":
                close(its.get().view("f"), message.view("f"), where)
            else:
                assert its.get().tobytes() == message.tobytes(), where
        if np.isfinite(values).all():
            expected, found = values.copy(), on_device.copy()
            for add in (False, True):
                wire.decode(message, n, block, expected, add)
                wire.decode(its, n, block, found, add)
                if name == "fp32":
                    close(found.get(), expected, (block, add))
                else:
                    assert found.get().tobytes() == expected.tobytes(), (block, add)


def test_arrays_are_made_where_the_others_are():
    import cupy

    values = cupy.arange(100, dtype="f")
    message = WIRE["int8"].encode(values, 16)
    found = WIRE["int8"].decode(message, 100, 16)
    assert isinstance(message, cupy.ndarray) and isinstance(found, cupy.ndarray)
    assert float(abs(found - values).max()) <= 99 / 254 + 1e-5


def test_kernels_follow_the_current_stream():
    import cupy

    values = cupy.ones(2**22, np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for factor in range(1, 60):
            values *= 1 + 1 / np.float32(factor)
        message = WIRE["int8"].encode(values, 256)
        found = WIRE["int8"].decode(message, values.size, 256)
        stream.synchronize()
    assert float(abs(found - values).max()) <= 1e-6 * float(values[0])
