"""Backward, whole and split, against Chainer's own."""

import doctest
import gc
import tracemalloc
import weakref

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from chainer.functions.math import basic_math
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from divisible.backward import backprop
from divisible.backward.backprop import backward, backward_input
from divisible.backward.weight_gradients import WeightGradients
from tests.support.examples import examples


def run_backward(kind, *arguments):
    if kind == "B":
        return backward(*arguments)
    gradients, pending = backward_input(*arguments)
    pending.run()
    return gradients


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def randn(*shape, dtype="f"):
    return np.random.RandomState(0).randn(*shape).astype(dtype)


def variables(arrays, requires_grad):
    return [chainer.Variable(a, requires_grad=r) for a, r in zip(arrays, requires_grad)]


def chainer_backward(function, arrays, requires_grad, output_gradients):
    inputs = variables(arrays, requires_grad)
    pairs = [
        (y, chainer.Variable(gy))
        for y, gy in zip(as_tuple(function(*inputs)), output_gradients)
        if gy is not None
    ]
    chainer.backward([y for y, _ in pairs], [gy for _, gy in pairs])
    # Chainer keeps the gradient of an input that needs none and is an output.
    return [x.grad if x.requires_grad else None for x in inputs]


def check(link, function, arrays, output_gradients=None, requires_grad=None):
    """Compare all gradients of one microbatch with Chainer's, bit for bit."""
    if requires_grad is None:
        requires_grad = [a.dtype.kind == "f" for a in arrays]
    if output_gradients is None:
        with chainer.no_backprop_mode():
            outputs = as_tuple(function(*map(chainer.Variable, arrays)))
        random = np.random.RandomState(1)
        output_gradients = [
            random.randn(*y.shape).astype(y.dtype) if y.dtype.kind == "f" else None
            for y in outputs
        ]
    link.cleargrads()
    expected = chainer_backward(function, arrays, requires_grad, output_gradients)
    expected_grads = {name: p.grad for name, p in link.namedparams()}
    for kind in "BI":
        weight_gradients = WeightGradients(link.params)
        weight_gradients.begin()
        inputs = variables(arrays, requires_grad)
        outputs = as_tuple(function(*inputs))
        result = run_backward(kind, inputs, outputs, output_gradients, weight_gradients)
        weight_gradients.finish()
        for actual, desired in zip(result, expected):
            assert_same(actual, desired)
        for name, p in link.namedparams():
            assert_same(p.grad, expected_grads[name], name)


def assert_same(actual, desired, name=""):
    if desired is None:
        assert actual is None, name
    else:
        assert actual is not None, name
        assert actual.dtype == desired.dtype
        np.testing.assert_array_equal(actual, desired, name)


class Net(chainer.Chain):
    """Convolution, batch and layer normalization, linear, a tied transpose."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(2, 4, 3, pad=1)
            self.bn = L.BatchNormalization(4)
            self.linear = L.Linear(None, 8)
            self.norm = L.LayerNormalization(8)
            self.bias = chainer.Parameter(0.5, (8,))
            self.scale = L.Scale(1, (8,), bias_term=True)

    def __call__(self, x):
        h = F.max_pooling_2d(F.relu(self.bn(self.conv(x))), 2)
        code = self.norm(self.linear(h))
        code = self.scale(F.tanh(code) + F.broadcast_to(self.bias, code.shape))
        return F.linear(code, F.transpose(self.linear.W))


class Square(chainer.Function):
    """An old-style function."""

    def forward(self, inputs):
        return (inputs[0] ** 2 * inputs[1],)

    def backward(self, inputs, grad_outputs):
        x, w = inputs
        return 2 * x * w * grad_outputs[0], x**2 * grad_outputs[0]


class Fused(chainer.FunctionNode):
    """A function that adds to the gradients its inputs have already."""

    def forward(self, inputs):
        return tuple(2 * x for x in inputs)

    def backward_accumulate(self, indexes, grad_outputs, grad_inputs):
        gradients = [2 * grad_outputs[i] for i in indexes]
        return tuple(
            gx if g is None else gx + g for gx, g in zip(gradients, grad_inputs)
        )


class SumAndDifference(chainer.FunctionNode):
    """A function outside the list that looks at no target indexes."""

    def forward(self, inputs):
        return inputs[0] + inputs[1], inputs[0] - inputs[1]

    def backward(self, indexes, grad_outputs):
        g, h = grad_outputs
        if g is None:
            return h, -h
        return (g, g) if h is None else (g + h, g - h)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_network(requires_grad):
    net = Net()
    x = randn(3, 2, 6, 6)
    net(x)
    check(net, net, [x], requires_grad=[requires_grad])


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("nobias", [True, False])
def test_linear(dtype, nobias):
    with chainer.using_config("dtype", np.dtype(dtype)):
        link = chainer.Sequential(
            L.Linear(5, 4, nobias=nobias), F.sigmoid, L.Linear(4, 3, nobias=nobias)
        )
    check(link, link, [randn(6, 5, dtype=dtype)])
    check(link, link, [np.asfortranarray(randn(6, 5, dtype=dtype))])
    check(link, link, [randn(1, 5, dtype=dtype)])
    check(link, link, [randn(12, 5, dtype=dtype)[::2]])


@pytest.mark.parametrize(
    "link, shape",
    [
        (lambda: L.Linear(30, 256), (512, 30)),
        (lambda: L.Convolution2D(2, 32, 3), (8, 2, 14, 14)),
        (lambda: L.Convolution2D(2, 1, 3), (8, 2, 70, 70)),
        (lambda: L.ConvolutionND(1, 2, 32, 3), (40, 2, 40)),
    ],
)
def test_biases_of_large_layers(link, shape):
    """Large arrays are added up in another order than small ones."""
    link, x = link(), randn(*shape)
    check(link, link, [x])
    # The output gradient is then in the memory order of the activation before it.
    check(link, lambda x: F.relu(link(x)), [x])
    with chainer_kernels.disabled():
        check(link, link, [x])
    with chainer.using_config("use_ideep", "auto"):
        check(link, link, [x])


def test_mixed_dtypes():
    link = L.Linear(5, 4)
    check(link, lambda x: F.linear(x, link.W), [randn(6, 5, dtype="e")])


@pytest.mark.parametrize(
    "link, shape",
    [
        (lambda: L.Convolution2D(2, 4, 3, stride=2), (3, 2, 7, 7)),
        (lambda: L.Convolution2D(4, 4, 3, groups=2, nobias=True), (3, 4, 6, 6)),
        (lambda: L.DilatedConvolution2D(2, 4, 3, dilate=2), (3, 2, 7, 7)),
        (lambda: L.DepthwiseConvolution2D(2, 3, 3), (3, 2, 7, 7)),
        (lambda: L.Deconvolution2D(2, 4, 3), (3, 2, 4, 4)),
        (lambda: L.ConvolutionND(1, 2, 4, 3), (3, 2, 7)),
        (lambda: L.DeconvolutionND(1, 2, 4, 3), (3, 2, 4)),
        (lambda: L.LocalConvolution2D(2, 4, in_size=4, ksize=3), (3, 2, 4, 4)),
        (lambda: L.Highway(5), (4, 5)),
        (lambda: L.PReLU(), (4, 5)),
        (lambda: L.Maxout(5, 3, 2), (4, 5)),
        (lambda: L.GroupNormalization(2, 4), (3, 4, 2, 2)),
        (lambda: L.LayerNormalization(5), (4, 5)),
        (lambda: L.BatchNormalization(5), (4, 5)),
        (lambda: L.Bias(1, (5,)), (4, 5)),
        (lambda: L.Scale(1, (5,), bias_term=True), (4, 5)),
        (lambda: L.Inception(4, 2, 2, 3, 2, 2, 2), (2, 4, 5, 5)),
    ],
)
def test_layers(link, shape):
    link = link()
    x = randn(*shape)
    check(link, link, [x])
    if not isinstance(link, L.Deconvolution2D):  # Chainer 7.8.1 raises ValueError
        check(link, link, [x], requires_grad=[False])
    # Behind another activation, so that the layer is in the middle of a stage.
    check(link, lambda x: link(F.tanh(x)), [x])


def test_embedding():
    link = chainer.Sequential(L.EmbedID(7, 4), lambda h: F.sum(h, axis=1), L.Linear(4))
    x = np.array([[1, 2], [6, 1]], "i")
    link(x)
    check(link, link, [x])


def test_recurrent_links():
    link = L.NStepLSTM(2, 3, 4, 0)

    def call(a, b):
        hy, cy, ys = link(None, None, [a, b])
        return (hy, cy, *ys)

    check(link, call, [randn(5, 3), randn(3, 3)])


def test_parameter_expressions():
    link = L.Linear(5, 4)

    def normalized(x):
        norm = F.sqrt(F.sum(link.W**2, axis=1, keepdims=True))
        return F.linear(x, link.W / F.broadcast_to(norm, link.W.shape), link.b)

    check(link, normalized, [randn(3, 5)])
    check(link, lambda x: normalized(F.tanh(x)), [randn(3, 5)])
    check(link, lambda x: F.linear(x, link.W + link.W), [randn(3, 5)])
    check(link, lambda x: (x * 1, link.W, F.transpose(link.W)), [randn(3, 5)])

    def tied_output(x):
        tied = F.transpose(link.W)
        return tied, F.linear(F.linear(x, link.W), tied)

    check(link, tied_output, [randn(3, 5)])
    # A constant, and a graph that depends on no input.
    check(link, lambda x: F.linear(np.ones((2, 5), "f"), link.W) + 1, [randn(3, 5)])


def test_weights_at_unusual_places():
    link = L.Linear(5, 4)
    for function in (
        lambda x: F.linear(link.W, F.tanh(x)),
        lambda x: F.matmul(link.W, F.tanh(x), transb=True),
        lambda x: F.matmul(F.tanh(x), link.W, transb=True),
        lambda x: F.tensordot(F.tanh(x), link.W, ((1,), (1,))),
        lambda x: F.concat([F.tanh(x), link.W], 0),
        lambda x: F.einsum("ij,kj->ik", F.tanh(x), link.W),
        lambda x: F.add(F.tanh(x), link.W[:3], F.sin(x)),
        lambda x: F.tanh(x) / link.W[:3] - link.W[:3],
    ):
        check(link, function, [randn(3, 5)])


def test_several_inputs_and_outputs():
    link = L.Linear(5, 4)

    def function(x, ids, y):
        left, middle, right = F.split_axis(link(x), [1, 2], axis=1)
        right = F.embed_id(ids, right)
        return left * F.broadcast_to(F.sum(y), left.shape), right, ids, y, middle

    arrays = [randn(3, 5), np.array([0, 2], "i"), randn(4)]
    check(link, function, arrays, [randn(3, 1), randn(2, 2), None, randn(4), None])
    check(link, function, arrays, [None, randn(2, 2), None, None, None])
    check(link, function, arrays, [None, None, None, randn(4), None])


def test_output_feeds_another_output():
    link = chainer.ChainList(L.Linear(5, 4), L.Linear(4, 3))

    def function(x):
        h = link[0](x)
        return h, link[1](h), h

    check(link, function, [randn(3, 5)])


def test_nothing_to_do():
    weight_gradients = WeightGradients()
    x = chainer.Variable(randn(3))
    assert backward([x], [x], [None], weight_gradients) == (None,)
    gy = randn(3)
    (gx,), pending = backward_input([x], [x], [gy], weight_gradients)
    assert gx is gy
    pending.run()
    assert backward([], [], [], weight_gradients) == ()
    x = chainer.Variable(randn(3), requires_grad=False)
    assert backward([x], [x * 2], [gy], weight_gradients) == (None,)


def test_diamonds():
    link = chainer.ChainList(*[L.Linear(4, 4) for _ in range(4)])

    def residual(x):
        h = link[0](x)
        h = h + F.relu(link[1](F.tanh(h))) + link[2](h) * h
        return h + x * x + link[3](x), h

    check(link, residual, [randn(3, 4)])


def test_old_style_function():
    link = chainer.Link()
    with link.init_scope():
        link.w = chainer.Parameter(2.0, (3, 4))
    check(link, lambda x: Square()(F.tanh(x), link.w), [randn(3, 4)])
    check(link, lambda x: Square()(F.tanh(x), F.exp(link.w)), [randn(3, 4)])


def test_fused_accumulation():
    link = chainer.Link()
    with link.init_scope():
        link.w = chainer.Parameter(2.0, (3, 4))

    def function(x):
        h = F.tanh(x)
        a, b = Fused().apply((h, link.w))
        return a * b + F.exp(h) * link.w

    check(link, function, [randn(3, 4)])


def test_lazy_grad_sum():
    link = L.Linear(4, 4)
    with chainer.using_config("lazy_grad_sum", True):
        check(link, lambda x: link(x) + x * x + F.exp(x), [randn(3, 4)])


@pytest.mark.parametrize(
    "function, node",
    [
        (lambda x, weight: x / weight, basic_math.Div),
        (lambda x, weight: F.add(x, x, weight), basic_math.MultiAdd),
    ],
)
def test_functions_that_compute_all_gradients_are_asked_once(
    function, node, monkeypatch
):
    asked = []
    original = node.backward

    def noted(self, indexes, gradients):
        asked.append(indexes)
        return original(self, indexes, gradients)

    monkeypatch.setattr(node, "backward", noted)
    link = L.Scale(W_shape=(3, 2))
    gradients = WeightGradients(link.params)
    gradients.begin()
    x = chainer.Variable(randn(3, 2))
    y = function(x, link.W)
    run_backward("I", [x], [y], [np.ones_like(y.array)], gradients)
    gradients.finish()
    assert len(asked) == 1
    assert link.W.grad is not None


def test_function_that_writes_grad_itself():
    link = L.Linear(4, 4)
    x = randn(3, 4)
    check(link, lambda x: F.forget(link, F.tanh(x)), [x])


@pytest.mark.parametrize("kind", ["B", "I"])
@pytest.mark.parametrize(
    "net",
    [
        Net,
        lambda: L.Linear(None, 4),
        lambda: L.StatefulGRU(5, 4),
        lambda: lambda_link(lambda link, x: F.forget(link.inner, F.tanh(x))),
        lambda: lambda_link(lambda link, x: link.inner(link.inner(x))),
    ],
)
def test_microbatches(kind, net):
    """The same arrays hold the gradients, minibatch after minibatch."""
    net = net()
    x = randn(6, 2, 6, 6) if isinstance(net, Net) else randn(6, 5)
    weight_gradients = WeightGradients(net.params)
    arrays = {}
    for step in range(3):
        grads = {}
        for run in ("chainer", "ours"):
            if run == "chainer":
                net.cleargrads()
            else:
                weight_gradients.begin()
            # Microbatches of unequal sizes, in another order every step.
            slices = [slice(0, 1), slice(1, 4), slice(4, 6)]
            for s in slices[step:] + slices[:step]:
                if hasattr(net, "reset_state"):
                    net.reset_state()
                v = chainer.Variable(x[s])
                y = net(v)
                gy = np.cos(y.array)
                if run == "chainer":
                    y.grad = gy
                    y.backward()
                else:
                    run_backward(kind, [v], [y], [gy], weight_gradients)
            if run == "ours":
                weight_gradients.finish()
            grads[run] = {name: p.grad for name, p in net.namedparams()}
        for name, desired in grads["chainer"].items():
            actual = grads["ours"][name]
            if desired is None:
                assert actual is None
                continue
            np.testing.assert_allclose(actual, desired, rtol=2e-4, atol=1e-5)
            assert arrays.setdefault(name, actual) is actual


def lambda_link(function):
    class Wrapper(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.inner = L.Linear(5, 5)

        def __call__(self, x):
            return function(self, x)

    return Wrapper()


def test_several_pending_microbatches():
    link = chainer.Sequential(L.Linear(4, 4), F.relu, L.Linear(4, 2))
    tied = lambda x: F.linear(link(x), F.transpose(link[2].W))  # noqa: E731
    weight_gradients = WeightGradients(link.params)
    xs = [randn(5, 4), randn(2, 4), randn(8, 4)]
    # The microbatches need not have taken the same way.
    functions = [tied, lambda x: tied(F.tanh(x)), lambda x: link[0](tied(x))]

    def minibatch(run):
        weight_gradients.begin()
        for x, function in zip(xs, functions):
            v = chainer.Variable(x)
            run([v], [function(v)], [np.ones((len(x), 4), "f")], weight_gradients)
        return weight_gradients

    minibatch(backward).finish()
    whole = [p.grad.copy() for p in link.params()]

    pendings = []
    minibatch(lambda *arguments: pendings.append(backward_input(*arguments)[1]))
    for i in (1, 2, 0):
        pendings[i].run()
    weight_gradients.finish()
    for p, grad in zip(link.params(), whole):
        np.testing.assert_allclose(p.grad, grad, rtol=1e-4, atol=1e-5)


def test_run_twice():
    link = L.Linear(4, 4)
    v = chainer.Variable(randn(2, 4))
    gradients = WeightGradients(link.params)
    _, pending = backward_input([v], [link(v)], [randn(2, 4)], gradients)
    pending.run()
    with pytest.raises(RuntimeError, match="already"):
        pending.run()


@pytest.mark.parametrize(
    "gradients, error",
    [
        ([], ValueError),
        ([randn(2, 3)], ValueError),
        ([randn(2, 4, dtype="d")], TypeError),
        ([[[1.0]]], TypeError),
    ],
)
@pytest.mark.parametrize("function", [backward, backward_input])
def test_bad_output_gradients(function, gradients, error):
    link = L.Linear(4, 4)
    v = chainer.Variable(randn(2, 4))
    with pytest.raises(error):
        function([v], [link(v)], gradients, WeightGradients(link.params))


def test_nan_in_debug_mode():
    link = L.Linear(4, 4)
    v = chainer.Variable(randn(2, 4), requires_grad=False)
    y = link(v)
    gy = np.full((2, 4), np.nan, "f")
    gradients = WeightGradients(link.params)
    with chainer.using_config("debug", True):
        _, pending = backward_input([v], [y], [gy], gradients)
        with pytest.raises(RuntimeError, match="NaN"):
            pending.run()
        y = link(np.ones((2, 4), "f"))
        with pytest.raises(RuntimeError, match="NaN"):
            backward([v], [y], [gy], gradients)


class RecordingHook(chainer.FunctionHook):
    name = "Recording"

    def __init__(self):
        self.calls = []

    def backward_preprocess(self, function, in_data, out_grad):
        assert len(in_data) == len(function.inputs)
        assert isinstance(out_grad[0], np.ndarray)
        self.calls.append((function.label, "pre"))

    def backward_postprocess(self, function, in_data, out_grad):
        self.calls.append((function.label, "post"))


def test_function_hooks():
    link = chainer.Sequential(L.Linear(4, 4), F.relu, L.Linear(4, 2))
    gradients = WeightGradients(link.params)
    v = chainer.Variable(randn(2, 4), requires_grad=False)
    linear = [("LinearFunction", "pre"), ("LinearFunction", "post")]
    relu = [("ReLU", "pre"), ("ReLU", "post")]

    y = link(v)
    local = RecordingHook()
    y.creator_node.add_hook(local, "local")
    with RecordingHook() as hook:
        _, pending = backward_input([v], [y], [randn(2, 2)], gradients)
    # The first layer has nothing to do before W, the last one is split.
    assert hook.calls == linear + relu
    with hook:
        pending.run()
    assert hook.calls == linear + relu + linear + linear
    assert local.calls == linear + linear

    with RecordingHook() as hook:
        backward([v], [link(v)], [randn(2, 2)], gradients)
    assert {label for label, _ in hook.calls} == {"LinearFunction", "ReLU"}

    with chainer.function_hooks.TimerHook() as timer:
        backward([v], [link(v)], [randn(2, 2)], gradients)
    assert timer.total_time() > 0


class TestMemory:
    def test_input_half_frees_activations(self):
        link = chainer.Sequential(L.Linear(4, 4), L.Linear(4, 4))
        gradients = WeightGradients(link.params)
        x = chainer.Variable(randn(2, 4))
        refs = {}

        def watch(name, h):
            refs[name] = weakref.ref(h.array)
            return h

        h = watch("input of 0", F.sin(x))
        h = watch("output of 0", link[0](h))
        h = watch("exp", F.exp(h))
        h = watch("input of 1", F.sin(h))
        h = watch("tanh", F.tanh(link[1](h)))
        tanh = weakref.ref(h.creator_node)
        y = h * 2
        del h
        gc.collect()
        gc.disable()
        try:
            _, pending = backward_input([x], [y], [randn(2, 4)], gradients)
            alive = {name for name, ref in refs.items() if ref() is not None}
            assert alive == {"input of 0", "input of 1"}
            assert tanh() is None
            pending.run()
            assert not any(ref() is not None for ref in refs.values())
        finally:
            gc.enable()

    def test_arrays_retained_for_others_are_freed(self):
        link = chainer.Link()
        with link.init_scope():
            link.b = chainer.Parameter(0.0, (2, 4))
        x = chainer.Variable(randn(2, 4))
        h = F.sin(x)
        ref = weakref.ref(h.array)
        # The addition needs the shape of h only; the cosine retains h.
        y = (h + link.b) * F.cos(h)
        del h
        gradients = WeightGradients(link.params)
        _, pending = backward_input([x], [y], [randn(2, 4)], gradients)
        assert ref() is None
        pending.run()

    def test_branches_without_gradient_are_freed(self):
        link = L.Linear(4, 4)
        x = chainer.Variable(randn(2, 4), requires_grad=False)
        h = F.exp(F.sin(x))
        ref = weakref.ref(h.creator_node)
        y = link(h)
        z = F.sin(y)
        del h
        gradients = WeightGradients(link.params)
        _, pending = backward_input([x], [y, z], [randn(2, 4), None], gradients)
        assert ref() is None
        pending.run()

    def test_activations_are_freed_on_the_way(self):
        """Peak memory of the whole backward does not exceed that of the forward."""
        size = 1 << 18
        x = chainer.Variable(randn(size))

        def forward():
            h = x
            for _ in range(10):
                h = F.sin(h)
            return h

        gy = randn(size)
        gradients = WeightGradients()
        tracemalloc.start()
        try:
            y = forward()
            before = tracemalloc.get_traced_memory()[0]
            backward([x], [y], [gy], gradients)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # Ten activations; one or two gradients and a temporary array beside them.
        assert before > 10 * gy.nbytes
        assert peak - before < 4 * gy.nbytes
        assert after < 3 * gy.nbytes

    @pytest.mark.parametrize("kind", ["B", "I"])
    def test_steady_state_allocates_no_gradients(self, kind):
        width = 256
        link = chainer.Sequential(L.Linear(width, width), L.Linear(width, width))
        gradients = WeightGradients(link.params)
        x, gy = randn(2, 4, width)

        def step():
            gradients.begin()
            for _ in range(3):
                v = chainer.Variable(x)
                run_backward(kind, [v], [link(v)], [gy], gradients)
            gradients.finish()

        step()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            step()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A weight gradient takes 256 KiB, an activation 4 KiB.
        assert peak - before < 128 * 1024
        assert after - before < 32 * 1024


OPERATIONS = ("add", "mul", "linear", "matmul", "relu", "transpose", "split", "both")


def random_function(steps, chosen, parameters):
    """Build a function of random steps over all values computed so far."""

    def function(*inputs):
        values = [*inputs, *parameters]
        for operation, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            if operation == "add":
                values.append(a + b)
            elif operation == "mul":
                values.append(a * b)
            elif operation == "linear":
                values.append(F.linear(a, b, F.sum(b, axis=0)))
            elif operation == "matmul":
                values.append(F.matmul(a, b))
            elif operation == "relu":
                values.append(F.relu(a))
            elif operation == "transpose":
                values.append(F.transpose(a))
            elif operation == "split":
                parts = F.split_axis(a, 3, axis=0)
                values.append(F.concat(parts[::-1], axis=0))
                values.append(F.broadcast_to(parts[1], (3, 3)))
            else:
                values.extend(SumAndDifference().apply((a, b)))
        return tuple(values[i % len(values)] for i in chosen)

    return function


@examples(200)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 99), st.integers(0, 99)),
        max_size=6,
    ),
    outputs=st.lists(
        st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=3
    ),
    requires_grad=st.lists(st.booleans(), min_size=1, max_size=3),
    n_parameters=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_random_graphs(steps, outputs, requires_grad, n_parameters, seed):
    """Random graphs of branches, ties and parameter expressions."""
    random = np.random.RandomState(seed)

    def integers():
        # Small integers: their sums are exact, whatever the order.
        return random.randint(-1, 2, (3, 3)).astype("d")

    link = chainer.Link()
    with link.init_scope():
        for i in range(n_parameters):
            setattr(link, f"W{i}", chainer.Parameter(integers()))
    chosen = [i for i, _ in outputs]
    gradients = [integers() if needed else None for _, needed in outputs]
    function = random_function(steps, chosen, list(link.params()))
    check(link, function, [integers() for _ in requires_grad], gradients, requires_grad)


def test_examples():
    result = doctest.testmod(backprop)
    assert result.attempted and not result.failed
