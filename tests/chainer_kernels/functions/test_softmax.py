"""Kernels of softmax and its cross entropy against Chainer's functions."""

import contextlib

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chainer_kernels
from tests.support import kernels
from tests.support.examples import examples

SOFTMAX = ["Softmax.forward", "_SoftmaxGrad.forward"]
CROSS_ENTROPY = [
    "SoftmaxCrossEntropy.forward_cpu",
    "_SoftmaxCrossEntropyGrad_NoDoubleBackprop.forward_cpu",
]
SHAPES = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@st.composite
def shapes_and_axes(draw):
    shape = draw(SHAPES)
    return shape, draw(st.integers(-len(shape), len(shape) - 1))


# One class has nearly everything: its gradient is what little is left of two terms.
@example(case=([4, 1], 0), order="C", seed=1)
@examples(100)
@given(shapes_and_axes(), kernels.orders, kernels.seeds)
def test_softmax(case, order, seed):
    shape, axis = case
    x = [kernels.in_order(3 * kernels.arrays(shape, seed), order)]
    kernels.check(lambda x: F.softmax(x, axis), x, SOFTMAX, cancels=True)
    kernels.check(
        lambda x: F.log_softmax(x, axis), x, ["LogSoftmax.forward"], atol=1e-3
    )


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("axis", [0, 1])
def test_float16_is_rounded_once(function, axis):
    x = kernels.arrays((20, 30), 1).astype("e")
    y = function(x, axis).array
    right = function(x.astype("f"), axis).array.astype("e")
    np.testing.assert_array_equal(y, right, strict=True)


def test_second_derivatives():
    for function in (F.softmax, F.log_softmax):
        kernels.check_second_derivative(function, [kernels.arrays((5, 6), 1)])


def test_long_rows():
    x = [kernels.arrays((70, 1000), 1)]
    kernels.check(F.softmax, x, SOFTMAX)
    kernels.check(F.log_softmax, x, ["LogSoftmax.forward", "LogSoftmaxGrad.forward"])


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("axis", [0, 1])
def test_numbers_without_bounds(function, axis):
    x = np.array([[1e30, 3, -1e30], [-np.inf, 1, 2], [np.nan, 1, 2], [5, 5, 5]], "f")
    y = function(x, axis).array
    with chainer_kernels.disabled():
        np.testing.assert_allclose(y, function(x, axis).array, 1e-6)


@pytest.mark.parametrize("length", [1, 7, 16, 100])
def test_numbers_of_rows_and_slices_do_not_overflow(length):
    """The greatest is found wherever it is, negative or not."""
    x = np.full((length, length), -100, "f")
    np.fill_diagonal(x, 200)
    for values in (x, x - 500):
        kernels.check(F.softmax, [values], SOFTMAX)
        kernels.check(lambda x: F.softmax(x, 0), [values], SOFTMAX)


def labelled(shape, seed, order="C"):
    x = kernels.in_order(3 * kernels.arrays(shape, seed), order)
    t = np.random.RandomState(seed).randint(-1, shape[1], (shape[0], *shape[2:]))
    return x, t.astype("i")


@given(
    SHAPES,
    kernels.orders,
    kernels.seeds,
    st.fixed_dictionaries(
        {
            "normalize": st.booleans(),
            "cache_score": st.booleans(),
            "reduce": st.sampled_from(["mean", "no"]),
            "ignore_label": st.sampled_from([-1, 0]),
        }
    ),
    st.booleans(),
)
def test_cross_entropy(shape, order, seed, options, is_weighted):
    x, t = labelled(shape, seed, order)
    t[t == -1] = options["ignore_label"]
    weight = np.linspace(0.5, 2, shape[1]).astype("f") if is_weighted else None

    def loss(x):
        return F.softmax_cross_entropy(x, t, class_weight=weight, **options)

    kernels.check(loss, [x], CROSS_ENTROPY, atol=1e-3)


@given(
    SHAPES,
    kernels.orders,
    kernels.seeds,
    st.fixed_dictionaries(
        {
            "normalize": st.booleans(),
            "cache_score": st.booleans(),
            "reduce": st.sampled_from(["mean", "no"]),
        }
    ),
    st.sampled_from([None, "e", "f"]),
)
def test_cross_entropy_of_float16_is_rounded_once(shape, order, seed, options, weight):
    x, t = labelled(shape, seed)
    if weight:
        options["class_weight"] = np.linspace(0.5, 2, shape[1]).astype(weight)

    def loss(x):
        return F.softmax_cross_entropy(x, t, **options)

    halves = [kernels.in_order(x.astype("e"), order)]
    kernels.check_float16(loss, halves, CROSS_ENTROPY)


def test_gradient_of_an_almost_certain_label_in_float16():
    """Its probability is 1 in float16, but its gradient is not 0."""
    x = chainer.Variable(np.array([[9, 0]], "e"))
    loss = F.softmax_cross_entropy(x, np.zeros(1, "i"))
    (gx,) = chainer.grad([loss], [x])
    assert loss.creator.y[0, 0] == 1
    np.testing.assert_allclose(gx.array[0, 0], -np.exp(-9), 1e-2)


@pytest.mark.parametrize("ours_first", [True, False])
def test_one_way_of_cross_entropy_is_chainers_in_float16(ours_first):
    """Whoever was first leaves what the other needs."""
    x, t = labelled((4, 5), 1)
    x = chainer.Variable(x.astype("e"))
    with contextlib.nullcontext() if ours_first else chainer_kernels.disabled():
        loss = F.softmax_cross_entropy(x, t)
    with chainer_kernels.disabled() if ours_first else contextlib.nullcontext():
        (found,) = chainer.grad([loss], [x])
    (right,) = chainer.grad([F.softmax_cross_entropy(x, t)], [x])
    assert found.dtype == "e"
    np.testing.assert_allclose(found.array, right.array, 1e-2, 1e-3)


def test_cross_entropy_keeps_memory_order_and_bits():
    x, t = labelled((3, 5, 4, 6), 1, "channels last")
    (y,), (gx,) = kernels.run(lambda x: F.softmax_cross_entropy(x, t), [x])
    (again,), (gx_again,) = kernels.run(lambda x: F.softmax_cross_entropy(x, t), [x])
    assert gx.strides == x.strides
    np.testing.assert_array_equal(y, again)
    np.testing.assert_array_equal(gx, gx_again)


def test_cross_entropy_twice_differentiated():
    x, t = labelled((3, 5), 1)
    kernels.check_second_derivative(
        lambda x: F.softmax_cross_entropy(
            x, t, reduce="no", enable_double_backprop=True
        ),
        [x],
    )
    x = chainer.Variable(x)
    loss = F.softmax_cross_entropy(x, t)
    (gx,) = chainer.grad([loss], [x], enable_double_backprop=True)
    with pytest.raises(RuntimeError, match="enable_double_backprop"):
        chainer.grad([F.sum(gx)], [x])


def test_cross_entropy_of_wrong_labels():
    x = kernels.arrays((3, 5), 1)
    with pytest.raises(IndexError):
        F.softmax_cross_entropy(x, np.array([0, 1, 5], "i"))
    with chainer.using_config("debug", True), pytest.raises(ValueError, match="label"):
        F.softmax_cross_entropy(x, np.array([0, 1, 5], "i"))


def test_what_is_left_to_chainer():
    x = kernels.arrays((3, 5), 1)
    soft = F.softmax(kernels.arrays((3, 5), 2)).array
    kernels.check(lambda x: F.softmax_cross_entropy(x, soft), [x], [])
    assert F.softmax_cross_entropy(x[:0], np.empty(0, "i")).array == 0
    assert F.softmax(x[:0]).shape == (0, 5)
