"""Kernels of pooling and its inverses against Chainer's functions."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.utils.conv import get_conv_outsize
from hypothesis import assume, given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import pooling_windows
from tests.support import kernels
from tests.support.examples import examples


def outs(sizes, options):
    """Returns how many windows there are."""
    each = zip(sizes, options["ksize"], options["stride"], options["pad"])
    return tuple(
        get_conv_outsize(*one, options.get("cover_all", False)) for one in each
    )


@st.composite
def poolings(draw, n_dims=(1, 2, 3), **more):
    """Draws the shape of an input, and what a pooling is asked for."""
    n = draw(st.sampled_from(n_dims))
    axis = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
    ksize, stride, pad = zip(*draw(st.lists(axis, min_size=n, max_size=n)))
    options = dict(ksize=ksize, stride=stride, pad=pad)
    options.update({name: draw(values) for name, values in more.items()})
    sizes = draw(st.lists(st.integers(1, 7), min_size=n, max_size=n))
    assume(min(outs(sizes, options)) > 0)
    return (draw(st.integers(1, 2)), draw(st.integers(1, 5)), *sizes), options


def results(function, inputs, kernel_names):
    """Returns outputs and gradients, first with kernels and then without."""
    with kernels.called() as names:
        ours = kernels.run(function, inputs)
    assert set(kernel_names) <= names
    with chainer_kernels.disabled():
        theirs = kernels.run(function, inputs)
    return sum(ours, []), sum(theirs, [])


@given(poolings(cover_all=st.booleans()), kernels.orders, kernels.seeds)
def test_max_pooling(pooling, order, seed):
    shape, options = pooling
    x = kernels.arrays(shape, seed, order)
    # Equals, and what is no number.
    x[np.abs(x) < 0.5] = 0
    x[x > 2] = np.nan
    x[x < -2] = -np.inf

    def pool(x):
        return F.max_pooling_nd(x, **options)

    names = ["MaxPoolingND.forward_cpu", "MaxPoolingNDGrad.forward_cpu"]
    (y, gx), (right, right_gx) = results(pool, [x], names)
    np.testing.assert_array_equal(y, right)
    np.testing.assert_allclose(gx, right_gx, 1e-5, 1e-5)
    with_indexes = F.max_pooling_nd(x, **options, return_indices=True)
    with chainer_kernels.disabled():
        its = F.max_pooling_nd(x, **options, return_indices=True)
    np.testing.assert_array_equal(with_indexes[1], its[1])
    assert with_indexes[1].dtype == its[1].dtype


@given(poolings(cover_all=st.booleans()), kernels.orders, kernels.seeds)
def test_second_derivative_of_max_pooling(pooling, order, seed):
    shape, options = pooling
    x = kernels.arrays(shape, seed, order)
    gy = kernels.arrays([*shape[:2], *outs(shape[2:], options)], seed, order)

    def gradient(x, gy):
        y = F.max_pooling_nd(x, **options)
        return chainer.grad([y], [x], [gy], enable_double_backprop=True)

    names = ["MaxPoolingNDWithIndexes.forward_cpu"]
    (gx, _, ggy), (right_gx, _, right_ggy) = results(gradient, [x, gy], names)
    np.testing.assert_allclose(gx, right_gx, 1e-5, 1e-5)
    np.testing.assert_allclose(ggy, right_ggy, 1e-5, 1e-5)


@examples(100)
@given(poolings(n_dims=(2,)), kernels.orders, kernels.seeds)
def test_average_pooling_2d(pooling, order, seed):
    shape, options = pooling
    names = ["AveragePooling2D.forward_cpu", "AveragePooling2DGrad.forward_cpu"]
    x = kernels.arrays(shape, seed, order)
    kernels.check(lambda x: F.average_pooling_2d(x, **options), [x], names)


@given(poolings(), st.sampled_from([0, None]), kernels.orders, kernels.seeds)
def test_average_pooling_nd(pooling, pad_value, order, seed):
    shape, options = pooling
    # A window without a cell has no average.
    assume(pad_value == 0 or np.less(options["pad"], options["ksize"]).all())
    names = ["AveragePoolingND.forward_cpu", "AveragePoolingNDGrad.forward_cpu"]
    x = kernels.arrays(shape, seed, order)
    kernels.check(
        lambda x: F.average_pooling_nd(x, **options, pad_value=pad_value), [x], names
    )


def test_the_gradient_of_an_average_is_left_alone():
    x = chainer.Variable(kernels.arrays((2, 3, 4), 0))
    y = F.average_pooling_nd(x, 2, pad_value=None)
    y.grad = np.ones_like(y.array)
    y.backward(retain_grad=True)
    np.testing.assert_array_equal(y.grad, 1)
    np.testing.assert_array_equal(x.grad, 0.5)


@given(poolings(cover_all=st.booleans()), kernels.orders, kernels.seeds)
def test_unpooling_nd(pooling, order, seed):
    shape, options = pooling
    x = kernels.arrays((*shape[:2], *outs(shape[2:], options)), seed, order)
    names = ["UnpoolingND.forward", "UnpoolingNDGrad.forward"]
    kernels.check(lambda x: F.unpooling_nd(x, **options, outsize=shape[2:]), [x], names)


@given(poolings((2,), cover_all=st.booleans()), kernels.orders, kernels.seeds)
def test_unpooling_2d(pooling, order, seed):
    shape, options = pooling
    # Chainer's own divides by zero for some others.
    options = {**options, "pad": (0, 0)}
    assume(min(outs(shape[2:], options)) > 0)
    x = kernels.arrays((*shape[:2], *outs(shape[2:], options)), seed, order)
    names = ["Unpooling2D.forward", "Unpooling2DGrad.forward"]
    kernels.check(lambda x: F.unpooling_2d(x, **options, outsize=shape[2:]), [x], names)


@pytest.mark.parametrize("pad", [0, 2])
def test_unpooling_by_whole_numbers(pad):
    x = kernels.arrays((2, 3, 5, 6), 0, "channels last")
    kernels.check(
        lambda x: F.unpooling_2d(x, 2, pad=pad, cover_all=False),
        [x],
        ["Unpooling2D.forward", "Unpooling2DGrad.forward"],
    )


@given(poolings((2,), cover_all=st.booleans()), kernels.orders, kernels.seeds)
def test_upsampling(pooling, order, seed):
    shape, options = pooling
    x = kernels.arrays(shape, seed, order)
    pooled, indexes = F.max_pooling_2d(x, **options, return_indices=True)

    def upsample(y):
        return F.upsampling_2d(y, indexes, **options, outsize=shape[2:])

    both = results(
        upsample,
        [np.nan_to_num(pooled.array, neginf=0)],
        ["Upsampling2D.forward_cpu", "Upsampling2DGrad.forward_cpu"],
    )
    for ours, theirs in zip(*both):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)


def test_upsampling_with_indexes_that_are_none():
    x = kernels.arrays((1, 1, 2, 2), 0)
    with pytest.raises(IndexError):
        F.upsampling_2d(x, np.full((1, 1, 2, 2), 4), 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pooling_2d(x, 3, 2, 1),
        lambda x: F.average_pooling_2d(x, 3, 2, 1),
        lambda x: F.average_pooling_nd(x, 3, 2, 1, pad_value=None),
        lambda x: F.unpooling_2d(x, 3, 2, 1),
    ],
)
def test_in_float16(function):
    x = kernels.arrays((2, 4, 5, 6), 0).astype(np.float16)
    ours = kernels.run(function, [x])
    in_float32 = kernels.run(function, [x.astype("f")])
    for a, b in zip(sum(ours, []), sum(in_float32, [])):
        assert a.dtype == np.float16
        np.testing.assert_allclose(a, b, 2e-3, 2e-3)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_the_memory_order_stays(order):
    x = kernels.arrays((2, 3, 4, 6), 0, order)
    for function in (F.max_pooling_2d, F.average_pooling_2d, F.unpooling_2d):
        y = function(x, 2).array
        assert np.argsort(y.strides).tolist() == np.argsort(x.strides).tolist()


def test_a_gradient_has_the_memory_order_of_its_input():
    x = chainer.Variable(kernels.arrays((2, 3, 4, 6), 0, "channels last"))
    F.sum(F.max_pooling_2d(x, 2)).backward()
    assert x.grad.strides == x.array.strides


def test_two_cores_change_no_bit(monkeypatch):
    x = kernels.arrays((5, 8, 40, 40), 0, "channels last")

    def pool(x):
        return F.average_pooling_2d(x, 3, 1, 1)

    (y,), (gx,) = kernels.run(pool, [x])
    monkeypatch.setattr("chainer_kernels.threads.blas_threads", lambda: 2)
    (other_y,), (other_gx,) = kernels.run(pool, [x])
    np.testing.assert_array_equal(y, other_y)
    np.testing.assert_array_equal(gx, other_gx)


def test_what_the_kernels_leave_to_chainer(monkeypatch):
    x = kernels.arrays((1, 2, 4, 4), 0)
    with pytest.raises(AssertionError, match="should be positive"):
        F.max_pooling_2d(x, 6, cover_all=False)
    with kernels.called() as names:
        F.max_pooling_2d(x.astype("d"), 2)
        # No table of so many windows is made.
        monkeypatch.setattr(pooling_windows, "LARGEST", 10)
        pooling_windows.windows.cache_clear()
        F.max_pooling_2d(x, 2)
    assert not names


def test_an_empty_batch():
    x = np.empty((0, 3, 4, 4), "f")
    (y,), (gx,) = kernels.run(lambda x: F.average_pooling_2d(x, 2), [x])
    assert (y.shape, gx.shape) == ((0, 3, 2, 2), x.shape)
