"""The memory order of activations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels import layouts
from tests.support import kernels

SHAPES = st.lists(st.integers(0, 4), max_size=4)


@given(SHAPES, kernels.orders, kernels.orders)
def test_flat_arrays_are_contiguous_and_element_beside_element(shape, one, other):
    first = kernels.arrays(shape, 1, one)
    second = kernels.in_order(first, other)
    flattened = layouts.flat([first, second])
    assert all(a.ndim == 1 and a.flags.c_contiguous for a in flattened)
    np.testing.assert_array_equal(*flattened)
    out = layouts.empty_like(first)
    assert out.shape == first.shape
    (line,) = layouts.flat([out])
    line[...] = flattened[0]
    np.testing.assert_array_equal(out, first)


@given(SHAPES, kernels.orders, st.data())
def test_around_some_axes(shape, order, data):
    axes = (
        sorted(data.draw(st.sets(st.sampled_from(range(len(shape)))))) if shape else []
    )
    x = kernels.arrays(shape, 1, order)
    views = layouts.around([x, kernels.in_order(x, "C")], axes)
    if views is None:
        assert len(axes) > 1
        return
    assert all(a.ndim == 3 and a.flags.c_contiguous for a in views)
    np.testing.assert_array_equal(*views)
    others = tuple([i for i in range(x.ndim) if i not in axes])
    sums = x.sum(others) if others else x
    np.testing.assert_allclose(views[0].sum((0, 2)), sums.reshape(-1), 1e-5, 1e-5)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_new_arrays_have_the_memory_order(order):
    x = kernels.arrays((2, 3, 4, 5), 1, order)
    assert layouts.empty_like(x).strides == x.strides
    assert layouts.empty_like(x, np.dtype("d")).dtype == "d"


@given(SHAPES, kernels.orders)
def test_the_order_of_memory(shape, order):
    x = kernels.arrays(shape, 1, order)
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
