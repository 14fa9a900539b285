"""Memory orders, and arrays seen in one dimension."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import layouts
from tests.support import kernels

shapes = st.lists(st.integers(0, 4), max_size=4)


@given(shapes, kernels.orders, kernels.orders, kernels.seeds)
def test_flat_keeps_elements_together(shape, order, other_order, seed):
    x = kernels.arrays(shape, seed, order)
    y = kernels.in_order(2 * x, other_order)
    ours, theirs = layouts.flat([x, y])
    assert ours.flags.c_contiguous and theirs.flags.c_contiguous
    np.testing.assert_array_equal(theirs, 2 * ours)
    np.testing.assert_array_equal(np.sort(ours), np.sort(x.ravel()))


@given(shapes, kernels.orders, kernels.seeds)
def test_what_is_empty_is_written_through_flat(shape, order, seed):
    x = kernels.arrays(shape, seed, order)
    y = layouts.empty_like(x)
    from_x, to_y = layouts.flat([x, y])
    to_y[...] = from_x
    np.testing.assert_array_equal(y, x)


@given(shapes, kernels.orders, kernels.seeds)
def test_memory_order(shape, order, seed):
    x = kernels.arrays(shape, seed, order)
    axes = layouts.memory_order(x)
    if axes is None:
        assert order in ("gaps", "reversed")
    else:
        assert x.transpose(axes).flags.c_contiguous


def test_channels_go_last_and_come_back():
    x = np.arange(24, dtype="f").reshape(1, 2, 3, 4)
    last = layouts.channels_last(x)
    assert last.shape == (1, 3, 4, 2) and last.flags.c_contiguous
    back = layouts.channels_first(last)
    np.testing.assert_array_equal(back, x)
    assert layouts.is_channels_last(back) and not layouts.is_channels_last(x)
    assert np.shares_memory(layouts.channels_last(back), last)
