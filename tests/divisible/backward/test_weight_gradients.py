"""Gradients accumulated in place, whatever happens to them between the steps."""

import doctest
import warnings
import weakref

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L

from chainer_kernels.block_rows import LINEAR, BlockRows
from chainer_kernels.functions.block_products import BlockLayer, BlockWeights
from chainer_kernels.functions.weight_gradients import ConvolutionWeights
from chainer_kernels.geometry import Geometry
from divisible.backward import weight_gradients
from divisible.backward.backprop import backward
from divisible.backward.weight_gradients import WeightGradients


def ones(*shape, dtype="f"):
    return np.ones(shape, dtype)


@pytest.fixture
def link():
    return L.Linear(3, 2)


@pytest.fixture
def gradients(link):
    return WeightGradients(link.params)


def minibatch(gradients, link, *arrays):
    gradients.begin()
    for array in arrays:
        gradients.add(link.W, array)
    gradients.finish()
    return link.W.grad


def test_first_overwrites_and_later_ones_add(link, gradients):
    given = ones(2, 3)
    first = minibatch(gradients, link, given, 2 * given)
    np.testing.assert_array_equal(first, 3 * given)
    assert link.b.grad is None
    second = minibatch(gradients, link, 5 * given)
    assert second is first
    np.testing.assert_array_equal(second, 5 * given)
    np.testing.assert_array_equal(given, ones(2, 3))


def test_nothing_received(link, gradients):
    minibatch(gradients, link, ones(2, 3))
    assert minibatch(gradients, link) is None
    np.testing.assert_array_equal(minibatch(gradients, link, ones(2, 3)), ones(2, 3))


def set_grad_to_array(link):
    link.W.grad = ones(2, 3)


def set_grad_to_view_of_data(link):
    link.W.grad = link.W.array


def zero(link):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        link.zerograds()


def run_chainer(link):
    F.sum(link(ones(4, 3))).backward()


@pytest.mark.parametrize(
    "interference",
    [
        lambda link: link.cleargrads(),
        zero,
        set_grad_to_array,
        set_grad_to_view_of_data,
        run_chainer,
        lambda link: link.W.grad.fill(np.nan),
        lambda link: link.W.grad_var,
    ],
)
def test_interference_between_steps(link, gradients, interference):
    minibatch(gradients, link, ones(2, 3))
    interference(link)
    data = link.W.array.copy()
    grad = minibatch(gradients, link, ones(2, 3), ones(2, 3))
    np.testing.assert_array_equal(grad, 2 * ones(2, 3))
    np.testing.assert_array_equal(link.W.array, data)


def test_unfinished_minibatch_is_forgotten(link, gradients):
    gradients.begin()
    gradients.add(link.W, ones(2, 3))
    np.testing.assert_array_equal(minibatch(gradients, link, ones(2, 3)), ones(2, 3))


def test_gradient_written_by_others_is_added(link, gradients):
    gradients.begin()
    gradients.add(link.W, ones(2, 3))
    link.W.grad = ones(2, 3)
    link.b.grad = ones(2)
    gradients.finish()
    np.testing.assert_array_equal(link.W.grad, 2 * ones(2, 3))
    np.testing.assert_array_equal(link.b.grad, ones(2))


def test_new_dtype_and_shape(link, gradients):
    minibatch(gradients, link, ones(2, 3))
    link.W.cleargrad()
    link.W.array = ones(2, 3, dtype="e")
    assert minibatch(gradients, link, ones(2, 3, dtype="e")).dtype == np.float16
    link.W.cleargrad()
    link.W.array = ones(4, 3)
    assert minibatch(gradients, link, ones(4, 3)).shape == (4, 3)


def test_uninitialized_parameters():
    link = L.Linear(None, 2)
    gradients = WeightGradients(link.params)
    gradients.begin()
    gradients.finish()
    assert not link.W.is_initialized
    gradients.begin()
    x = chainer.Variable(ones(4, 3))
    backward([x], [link(x)], [ones(4, 2)], gradients)
    gradients.finish()
    np.testing.assert_array_equal(link.W.grad, np.full((2, 3), 4))


def test_scalar_and_fortran_order_parameters():
    link = chainer.Link()
    with link.init_scope():
        link.s = chainer.Parameter(np.array(2, "f"))
        link.W = chainer.Parameter(np.asfortranarray(ones(2, 3)))
    gradients = WeightGradients(link.params)
    gradients.begin()
    for _ in range(2):
        x = chainer.Variable(ones(4, 3))
        y = F.linear(x * F.broadcast_to(link.s, x.shape), link.W)
        backward([x], [y], [ones(4, 2)], gradients)
    gradients.finish()
    np.testing.assert_array_equal(link.s.grad, 2 * 24)
    np.testing.assert_array_equal(link.W.grad, np.full((2, 3), 16))


def test_frozen_parameters(link, gradients):
    """disable_update keeps the gradient, which clipping counts."""
    optimizer = chainer.optimizers.SGD(1).setup(link)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1))
    link.W.update_rule.enabled = False
    before = link.W.array.copy()
    minibatch(gradients, link, 3 * ones(2, 3))
    optimizer.update()
    np.testing.assert_array_equal(link.W.array, before)
    assert np.linalg.norm(link.W.grad) == pytest.approx(1, rel=1e-4)

    link.W.node._requires_grad = link.W._requires_grad = False
    gradients.begin()
    x = chainer.Variable(ones(4, 3))
    backward([x], [link(x)], [ones(4, 2)], gradients)
    gradients.finish()
    assert link.W.grad is None
    assert link.b.grad is not None


def test_training_equals_chainer():
    def train(step):
        np.random.seed(0)
        link = chainer.Sequential(L.Linear(3, 8), F.relu, L.Linear(8, 2))
        optimizer = chainer.optimizers.Adam().setup(link)
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.5))
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
        run = step(link)
        for _ in range(5):
            run(np.random.randn(4, 3).astype("f"))
            optimizer.update()
        return [p.array for p in link.params()]

    def by_chainer(link):
        def run(x):
            link.cleargrads()
            F.sum(link(x) ** 2).backward()

        return run

    def by_us(link):
        gradients = WeightGradients(link.params)

        def run(x):
            gradients.begin()
            x = chainer.Variable(x)
            backward([x], [F.sum(link(x) ** 2)], [np.ones((), "f")], gradients)
            gradients.finish()

        return run

    for ours, chainers in zip(train(by_us), train(by_chainer)):
        np.testing.assert_array_equal(ours, chainers)


def test_examples():
    result = doctest.testmod(weight_gradients)
    assert result.attempted and not result.failed


def test_float16_is_added_in_float32_and_rounded_once():
    link = L.Linear(3, 2, initialW=np.float16(1))
    link.W.cleargrad()
    link.W.array = link.W.array.astype(np.float16)
    gradients = WeightGradients(link.params)
    # In float16 2048 + 1 is 2048.
    arrays = [np.full((2, 3), v, np.float16) for v in (2048, 1, 1, 1, 1)]
    assert minibatch(gradients, link, *arrays).dtype == np.float16
    np.testing.assert_array_equal(link.W.grad, np.full((2, 3), 2052, "e"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large = np.full((2, 3), 6e4, np.float16)
        assert np.isposinf(minibatch(gradients, link, large, large)).all()


@pytest.mark.parametrize("n_microbatches", [1, 4])
def test_float16_products_are_added_in_float32(n_microbatches):
    link = L.Linear(30, 4)
    link.cleargrads()
    for param in link.params():
        param.array = param.array.astype(np.float16)
    gradients = WeightGradients(link.params)
    rng = np.random.RandomState(0)
    x, gy = (rng.normal(size=(8, n)).astype(np.float16) for n in (30, 4))
    gradients.begin()
    total = np.zeros((4, 30), np.float32)
    for a, b in zip(np.split(x, n_microbatches), np.split(gy, n_microbatches)):
        backward([], [link(a)], [b], gradients)
        total += b.astype("f").T.dot(a.astype("f"))
    gradients.finish()
    np.testing.assert_allclose(link.W.grad, total.astype("e"), rtol=1e-3)
    if n_microbatches == 1:
        y = link(x)
        y.grad = gy
        pipelined = link.W.grad, link.b.grad
        link.cleargrads()
        y.backward()
        for ours, chainers in zip(pipelined, (link.W.grad, link.b.grad)):
            np.testing.assert_array_equal(ours, chainers)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_factor_comes_before_rounding(dtype):
    link = chainer.links.Linear(2, 1, nobias=True)
    link.W.array = link.W.array.astype(dtype)
    gradients = WeightGradients(link.params)
    for _ in range(2):
        gradients.begin()
        for _ in range(2):
            gradients.add(link.W, np.full((1, 2), 60000, np.float32))
        gradients.finish(0.25)
        np.testing.assert_array_equal(link.W.grad, np.full((1, 2), 30000, dtype))


def test_what_is_taken_is_left_alone(link, gradients):
    gradients.begin()
    gradients.add(link.W, ones(2, 3))
    gradients.add(link.b, ones(2))
    assert gradients.n_parts(link.W) == 1
    link.W.grad = 2 * ones(2, 3)
    taken = gradients.take(link.W)
    np.testing.assert_array_equal(taken, 3 * ones(2, 3))
    gradients.finish(0.5)
    assert link.W.grad is None
    np.testing.assert_array_equal(taken, 3 * ones(2, 3))
    np.testing.assert_array_equal(link.b.grad, 0.5 * ones(2))
    # Until the next minibatch.
    np.testing.assert_array_equal(minibatch(gradients, link, ones(2, 3)), ones(2, 3))


def test_nothing_may_be_added_to_what_is_taken(link, gradients):
    gradients.begin()
    assert gradients.take(link.b) is None
    gradients.add(link.W, ones(2, 3))
    gradients.take(link.W)
    with pytest.raises(RuntimeError, match="came after those of the last microbatch"):
        gradients.add(link.W, ones(2, 3))
    link.W.grad = ones(2, 3)
    with pytest.raises(RuntimeError, match="something adds to it by itself"):
        gradients.finish()


def test_gradients_that_are_not_turned_back_yet_keep_no_activations():
    link = L.Convolution2D(4, 6, 3, pad=1)
    gradients = WeightGradients(link.params)
    gradients.begin()
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    freed = []
    arrays = [ones(2, 2, 2, n) for n in (4, 6)]
    for array in arrays:
        weakref.finalize(array, freed.append, array.shape)
    gradients.accumulate(link.W, ConvolutionWeights(*arrays, geometry))
    del array, arrays
    assert len(freed) == 2


@pytest.mark.parametrize("order", ["ccc", "ccwc", "wcc", "cccw"])
@pytest.mark.parametrize("taken", [False, True])
def test_gradients_of_convolutions_are_turned_back_once(order, taken):
    link = L.Convolution2D(4, 6, 3, pad=1)
    random = np.random.RandomState(0)
    gradients = WeightGradients(link.params)
    for _ in range(2):
        gradients.begin()
        expected = 0
        for kind in order:
            if kind == "w":
                array = random.randn(*link.W.shape).astype("f")
                gradients.add(link.W, array)
                expected = expected + array
                continue
            x = random.randn(2, 4, 2, 2).astype("f")
            gy = random.randn(2, 6, 2, 2).astype("f")
            given = chainer.Variable(x)
            y = link(given)
            backward([given], [y], [gy], gradients)
            link.cleargrads()
            with chainer.force_backprop_mode():
                y = link(x)
                y.grad = gy
                y.backward()
            expected = expected + link.W.grad
            link.cleargrads()
        if taken:
            found = gradients.take(link.W)
            gradients.finish()
        else:
            gradients.finish(0.5)
            found = link.W.grad * 2
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["aa", "ab", "ba", "awa", "waa", "aba", "a"])
def test_gradients_of_blocks_are_added_up_as_tiles(order):
    """Two uses of a weight may skip other blocks, or none."""
    random, shape = np.random.RandomState(0), (16, 24)
    layers = {
        name: BlockLayer(BlockRows(random.rand(2, 3, 1) < share), LINEAR, shape)
        for name, share in (("a", 0.7), ("b", 0.4))
    }
    link = L.Linear(24, 16)
    gradients = WeightGradients(link.params)
    for _ in range(2):
        gradients.begin()
        expected = np.zeros(shape)
        for kind in order:
            if kind == "w":
                gradients.add(link.W, ones(*shape))
                expected += 1
                continue
            x, gy = (random.randn(100, n).astype("f") for n in (24, 16))
            layer = layers[kind]
            gradients.accumulate(link.W, BlockWeights(layer, x, gy))
            live = layer.rows.live[:, :, 0].repeat(8, axis=0).repeat(8, axis=1)
            expected += live * (gy.T.astype(float) @ x)
        gradients.finish()
        np.testing.assert_allclose(link.W.grad, expected, 1e-4, 1e-4)
        assert not link.W.grad[expected == 0].any()
