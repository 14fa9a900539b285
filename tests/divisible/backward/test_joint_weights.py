"""Weight gradients of several microbatches together, against one after the other."""

import gc
import weakref

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.contributions import Product, Rows
from divisible.backward.backprop import backward_input, run_together
from divisible.backward.completion import Completion
from divisible.backward.weight_gradients import WeightGradients
from tests.support.examples import examples

DTYPES = {"e": 2e-2, "f": 1e-4, "d": 1e-9}


class Net(chainer.Chain):
    """Products, convolutions, a tie, a transpose, and weights that are used twice."""

    def __init__(self, is_random=False):
        super().__init__()
        self.is_random = is_random
        with self.init_scope():
            self.conv = L.Convolution2D(2, 4, 3, pad=1)
            self.strided = L.Convolution2D(4, 4, 2, stride=2, nobias=True)
            self.deconv = L.Deconvolution2D(4, 3, 2, stride=2)
            self.linear = L.Linear(3 * 16, 8)
            self.again = L.Linear(8, 8)
            self.embed = L.EmbedID(5, 8)
            self.bias = chainer.Parameter(0.5, (8,))

    def __call__(self, x, ids):
        h = F.relu(self.strided(F.relu(self.conv(x))))
        h = self.linear(F.tanh(self.deconv(h)))
        h = self.again(F.tanh(self.again(h))) + F.broadcast_to(self.bias, h.shape)
        h = h + self.embed(ids)
        if self.is_random and float(x.array.ravel()[0]) > 0:
            # Another graph for some of the microbatches.
            h = self.again(h)
        return F.linear(h, F.transpose(self.linear.W))


def make(dtype, is_random):
    with chainer.using_config("dtype", np.dtype(dtype)):
        np.random.seed(0)
        return Net(is_random)


def microbatches(sizes, dtype):
    """Returns microbatches that are neighbours in one array."""
    random = np.random.RandomState(1)
    x = random.randn(sum(sizes), 2, 4, 4).astype(dtype)
    ids = random.randint(0, 5, sum(sizes)).astype("i")
    ends = np.cumsum(sizes)[:-1]
    return [*zip(np.split(x, ends), np.split(ids, ends))]


def input_gradients(net, parts, gradients):
    pending = []
    for x, ids in parts:
        x = chainer.Variable(x)
        y = net(x, ids)
        gy = np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)
        pending.append(backward_input([x], [y], [gy], gradients)[1])
    return pending


def joined(net, parts, groups):
    """Returns gradients for groups, as the numbers of microbatches in each."""
    gradients = WeightGradients(net.params)
    gradients.begin()
    pending = input_gradients(net, parts, gradients)
    for n in groups:
        run_together(pending[:n], gradients)
        del pending[:n]
    gradients.finish()
    return {name: param.grad.copy() for name, param in net.namedparams()}


def serial(net, parts):
    net.cleargrads()
    for x, ids in parts:
        y = net(chainer.Variable(x), ids)
        y.grad = np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)
        y.backward()
    return {name: param.grad for name, param in net.namedparams()}


@examples(100)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
    st.sampled_from([*DTYPES]),
    st.booleans(),
    st.data(),
)
def test_groups_differ_from_chainer_by_rounding(sizes, dtype, is_random, data):
    net, parts = make(dtype, is_random), microbatches(sizes, dtype)
    ends = data.draw(st.sets(st.integers(1, len(sizes))).map(sorted)) or [len(sizes)]
    ends = sorted({*ends, len(sizes)})
    groups = np.diff([0, *ends]).tolist()
    found, expected = joined(net, parts, groups), serial(net, parts)
    for name, gradient in expected.items():
        scale = np.abs(gradient).max() + 1
        assert found[name].dtype == gradient.dtype
        np.testing.assert_allclose(
            found[name] / scale, gradient / scale, atol=DTYPES[dtype], err_msg=name
        )


def test_a_group_of_one_has_the_bits_of_one():
    net, parts = make("f", False), microbatches([2], "f")
    found, expected = joined(net, parts, [1]), serial(net, parts)
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient)


def test_where_rows_lie_does_not_matter():
    net, parts = make("f", False), microbatches([2, 1, 3], "f")
    apart = [tuple(array.copy() for array in part) for part in parts]
    one, other = joined(net, parts, [3]), joined(net, apart, [3])
    for name, gradient in one.items():
        np.testing.assert_array_equal(gradient, other[name])


def test_rows_of_neighbours_are_a_view():
    whole = np.arange(24.0).reshape(6, 4)
    rows = Rows()
    view = rows.of([whole[1:3], whole[3:4], whole[4:]])
    assert np.shares_memory(view, whole)
    np.testing.assert_array_equal(view, whole[1:])
    for others in ([whole[2:], whole[:2]], [whole[:2], whole[3:]]):
        copy = rows.of(others)
        assert not np.shares_memory(copy, whole)
        np.testing.assert_array_equal(copy, np.concatenate(others))
    separate = [np.ones((2, 3)), np.zeros((1, 3))]
    assert rows.of(separate) is rows.of(separate)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=4), st.integers(1, 3))
def test_a_joined_product_is_the_sum(sizes, width):
    random = np.random.RandomState(0)
    shares = [
        Product(random.randn(n, 2).astype("f").T, random.randn(n, width).astype("f"))
        for n in sizes
    ]
    out = np.empty((2, width), "f")
    shares[0].joined(shares[1:], Rows()).write(out)
    expected = sum(share.a.dot(share.b) for share in shares)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_one_product_for_all_microbatches():
    """The weight gradient is passed once, whatever the number of microbatches."""
    net = L.Linear(3, 2)
    gradients = WeightGradients(net.params)
    gradients.begin()
    pending = []
    for _ in range(4):
        x = chainer.Variable(np.ones((2, 3), "f"))
        gy = np.ones((2, 2), "f")
        pending.append(backward_input([x], [net(x)], [gy], gradients)[1])
    run_together(pending, gradients)
    assert gradients.n_parts(net.W) == gradients.n_parts(net.b) == 1


@pytest.mark.parametrize(
    "make_link",
    [
        lambda: L.Deconvolution2D(2, 4, 3, stride=2, pad=1),
        # Windows that cover all: the last rows come from no other stride.
        lambda: L.Deconvolution2D(2, 4, 3, stride=2, pad=1, outsize=(6, 6)),
        lambda: L.Deconvolution2D(2, 4, 3, nobias=True, dilate=2),
        lambda: L.Deconvolution2D(2, 4, 2, groups=2),
        lambda: L.DeconvolutionND(2, 2, 4, 3, stride=2),
    ],
)
def test_one_convolution_for_all_microbatches_of_a_deconvolution(make_link):
    np.random.seed(0)
    net, random = make_link(), np.random.RandomState(1)
    gradients, pending = WeightGradients(net.params), []
    gradients.begin()
    net.cleargrads()
    images = [random.randn(n, 2, 3, 3).astype("f") for n in (1, 2, 2)]
    expected = {name: 0 for name, _ in net.namedparams()}
    for image in images:
        x = chainer.Variable(image)
        y = net(x)
        gy = np.cos(np.arange(y.size, dtype="f")).reshape(y.shape)
        pending.append(backward_input([x], [y], [gy], gradients)[1])
        names, params = zip(*net.namedparams())
        grads = chainer.grad(
            [net(chainer.Variable(image))], params, [chainer.Variable(gy)]
        )
        for name, grad in zip(names, grads):
            expected[name] = expected[name] + grad.array
    run_together(pending, gradients)
    assert [gradients.n_parts(param) for param in net.params()] == [1] * len(params)
    gradients.finish()
    for name, param in net.namedparams():
        np.testing.assert_allclose(param.grad, expected[name], rtol=1e-4, atol=1e-4)


def test_hooks_see_each_function_of_each_microbatch():
    class Seen(chainer.FunctionHook):
        name = "seen"

        def __init__(self):
            self.calls = []

        def backward_preprocess(self, function, inputs, gradients):
            self.calls.append(("pre", function.label, len(inputs[0])))

        def backward_postprocess(self, function, inputs, gradients):
            self.calls.append(("post", function.label, len(inputs[0])))

    net, gradients = L.Linear(3, 2), WeightGradients()
    gradients.begin()
    pending = []
    for n in (1, 2):
        x = chainer.Variable(np.ones((n, 3), "f"))
        gy = np.ones((n, 2), "f")
        pending.append(backward_input([x], [net(x)], [gy], gradients)[1])
    with Seen() as seen:
        run_together(pending, gradients)
    assert seen.calls == [
        (when, "LinearFunction", n) for n in (1, 2) for when in ("pre", "post")
    ]


@pytest.mark.parametrize("is_debug, is_random", [(False, False), (True, False), (0, 1)])
def test_a_gradient_is_complete_when_all_has_been_added(is_debug, is_random):
    """Also where the graphs of microbatches differ."""
    net, parts = make("f", is_random), microbatches([2, 1, 2], "f")
    expected = joined(net, parts, [3])
    gradients, found = WeightGradients(net.params), {}

    def complete(parameter):
        found[id(parameter)] = gradients.take(parameter).copy()

    gradients.begin()
    pending = input_gradients(net, parts, gradients)
    gradients.completion = Completion(complete)
    with chainer.using_config("debug", is_debug):
        run_together(pending, gradients)
    for name, parameter in net.namedparams():
        np.testing.assert_allclose(
            found[id(parameter)], expected[name], rtol=1e-4, atol=1e-4
        )


def test_arrays_are_released_function_by_function():
    net = chainer.Sequential(L.Linear(3, 3), F.tanh, L.Linear(3, 3), F.tanh)
    held, gradients = [], WeightGradients(net.params)
    gradients.begin()
    pending = []
    for _ in range(2):
        x = chainer.Variable(np.ones((2, 3), "f"))
        h = net[1](net[0](x))
        held.append(weakref.ref(h.node))
        y = net[3](net[2](h))
        del h
        pending.append(backward_input([x], [y], [np.ones((2, 3), "f")], gradients)[1])
        del x, y
    run_together(pending, gradients)
    del pending
    gc.collect()
    assert [node() for node in held] == [None, None]


def test_an_error_has_the_position_of_its_layer():
    def fails(self, others, rows):
        raise ArithmeticError("on purpose")

    net, gradients = L.Linear(3, 2), WeightGradients()
    gradients.begin()
    pending = []
    for _ in range(2):
        x = chainer.Variable(np.ones((2, 3), "f"))
        y = net(x)
        y.creator.layer_position = 7
        gy = np.ones((2, 2), "f")
        pending.append(backward_input([x], [y], [gy], gradients)[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Product, "joined", fails)
        with pytest.raises(ArithmeticError) as caught:
            run_together(pending, gradients)
    assert caught.value.layer_position == 7
    with pytest.raises(RuntimeError, match="computed already"):
        run_together(pending, gradients)


class Varied(chainer.Chain):
    """A convolution that is called with another geometry, or for other sizes."""

    def __init__(self, ways):
        super().__init__()
        self.ways = iter(ways)
        with self.init_scope():
            self.W = chainer.Parameter(np.random.RandomState(0).randn(3, 2, 3, 3))
            self.W.array = self.W.array.astype("f")
            self.b = chainer.Parameter(np.zeros(3, "f"))

    def __call__(self, x):
        return F.convolution_2d(x, self.W, self.b, **next(self.ways))


@pytest.mark.parametrize(
    "sizes, ways",
    [
        ((8, 8), [{"pad": 1}, {"pad": 2, "dilate": 2}]),
        ((8, 6), [{"pad": 1}, {"pad": 1}]),
        ((7, 7, 7), [{}, {"stride": 1}, {"stride": 2}]),
    ],
)
def test_calls_that_do_not_fit_together_are_added_one_by_one(sizes, ways):
    random = np.random.RandomState(1)
    images = [random.randn(2, 2, size, size).astype("f") for size in sizes]
    found = []
    for together in (True, False):
        net = Varied(ways)
        gradients = WeightGradients(net.params)
        gradients.begin()
        pending = []
        for x in map(chainer.Variable, images):
            y = net(x)
            gy = np.cos(np.arange(y.size, dtype="f")).reshape(y.shape)
            pending.append(backward_input([x], [y], [gy], gradients)[1])
        if together:
            run_together(pending, gradients)
        else:
            for each in pending:
                each.run()
        gradients.finish()
        found.append((net.W.grad, net.b.grad))
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_rows_that_differ_are_not_joined():
    whole = np.zeros(24, "f")
    one, other = whole[:8].reshape(2, 4), whole[8:].reshape(2, 8)
    assert Rows().of([one, other]) is None
    assert Rows().of([one, one.astype("d")]) is None
