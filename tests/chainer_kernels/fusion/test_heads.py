"""Batch normalizations that run as one function with what follows them."""

import copy
import functools
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_kernels
from chainer_kernels.fusion.fusing import Fusion
from chainer_kernels.fusion.normalized import NormalizedFunction
from chainer_kernels.fusion.report import fuse, run_layers
from tests.support import kernels
from tests.support.fusion import assert_same_bits, one_by_one

N_CHANNELS = 6
SHAPE = 5, N_CHANNELS, 8, 9


@chainer_kernels.fusible
class Added(chainer.Chain):
    """Adds something to what is normalized."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.norm = L.BatchNormalization(N_CHANNELS)

    def forward(self, x, shortcut):
        return self.norm(x) + shortcut


def swish(x):
    return x * F.sigmoid(x)


chainer_kernels.fusible(swish)


def normalization(seed=3, **options):
    link = L.BatchNormalization(N_CHANNELS, **options)
    random = np.random.RandomState(seed)
    for array in (link.gamma.array, link.beta.array, link.avg_mean):
        array[...] = random.standard_normal(N_CHANNELS)
    return link


def state(layers):
    """Returns the gradients, averages and counts of all links."""
    links = [
        k for each in layers if isinstance(each, chainer.Link) for k in each.links()
    ]
    norms = [k for k in links if isinstance(k, L.BatchNormalization)]
    return [
        array
        for k in norms
        for array in (k.gamma.grad, k.beta.grad, k.avg_mean, k.avg_var, np.array(k.N))
    ]


def trained(call, layers, arrays, seed=0):
    """Returns the output of layers on arrays, and all that a step leaves behind."""
    np.random.seed(seed)
    variables = [chainer.Variable(x) for x in arrays]
    for layer in layers:
        if isinstance(layer, chainer.Link):
            layer.cleargrads()
    y = call(*variables)
    y.grad = np.cos(np.arange(y.size, dtype="f")).reshape(y.shape)
    y.backward()
    label = y.creator_node.label
    return label, [y.array, *(v.grad for v in variables), *map(np.copy, state(layers))]


def both(layers, arrays, decisions=None):
    """Returns what layers and a copy of them leave behind, fused and one by one."""
    others = copy.deepcopy(layers)
    fusion = Fusion(decisions or {(0, len(layers)): True})
    call = lambda *inputs: run_layers(layers, fusion, inputs)  # noqa: E731
    label, found = trained(call, layers, arrays)
    _, expected = trained(functools.partial(one_by_one, others), others, arrays)
    return label, found, expected


@pytest.mark.parametrize(
    ("shape", "order"),
    [(SHAPE, "C"), (SHAPE, "channels last"), ((300, N_CHANNELS), "C")],
)
@pytest.mark.parametrize(
    "tail", [[F.relu], [F.relu, F.dropout], [F.tanh, F.leaky_relu], [swish]]
)
def test_it_has_the_bits_of_the_layers(tail, shape, order):
    x = kernels.arrays(shape, 1, order)
    label, found, expected = both([normalization(), *tail], [x])
    assert label.startswith("BatchNormalization > ")
    assert_same_bits(found, expected)


@pytest.mark.parametrize("order", ["C", "channels last"])
@pytest.mark.parametrize("tail", [[F.relu], [F.sigmoid], [F.identity], [F.dropout]])
def test_something_may_be_added_within_a_layer(tail, order):
    xs = [kernels.arrays(SHAPE, seed, order) for seed in range(2)]
    layers = [Added(), *tail]
    layers[0].norm = normalization()
    label, found, expected = both(layers, xs)
    assert label.startswith("BatchNormalization > _ + _ > ")
    assert_same_bits(found, expected)


@pytest.mark.parametrize("tail", [F.relu, F.dropout, swish])
def test_gradients_have_the_memory_order_of_those_one_by_one(tail):
    xs = [kernels.arrays(SHAPE, seed, "channels last") for seed in range(2)]
    layers, strides = [Added(), tail], []
    fusion = Fusion({(0, 2): True})
    for call in (
        lambda *inputs: run_layers(layers, fusion, inputs),
        functools.partial(one_by_one, layers),
    ):
        np.random.seed(0)
        variables = [chainer.Variable(x) for x in xs]
        y = call(*variables)
        # In another order than all the others.
        y.grad = kernels.arrays(SHAPE, 2)
        y.backward()
        strides.append([v.grad.strides for v in variables])
    assert strides[0] == strides[1]


@pytest.mark.parametrize("n", [1, 40])
def test_many_rows_are_added_up_in_the_same_blocks(n):
    x = kernels.arrays((n, N_CHANNELS, 70, 80), 1)
    for each in (x, kernels.in_order(x, "channels last")):
        _, found, expected = both([normalization(), F.relu], [each])
        assert_same_bits(found, expected)


def test_inputs_without_gradients_have_none():
    xs = [kernels.arrays(SHAPE, seed) for seed in range(2)]
    layer = Added()
    for wanted in ([0], [1], []):
        fusion = Fusion({(0, 2): True})
        results = []
        for run in (
            lambda *v, f=fusion: run_layers([layer, F.relu], f, v),
            functools.partial(one_by_one, [layer, F.relu]),
        ):
            vs = [
                chainer.Variable(x, requires_grad=i in wanted) for i, x in enumerate(xs)
            ]
            layer.cleargrads()
            y = run(*vs)
            y.grad = xs[0]
            y.backward()
            results.append([y.array, *(v.grad for v in vs), layer.norm.gamma.grad])
        assert_same_bits(*results)


class Hook(chainer.FunctionHook):
    name = "seen"

    def __init__(self):
        self.labels = []

    def forward_preprocess(self, function, in_data):
        self.labels.append(function.label)


class LinkHook(chainer.LinkHook):
    name = "links"


def is_fused(fusion, layers, x):
    y = run_layers(layers, fusion, (chainer.Variable(x),))
    return isinstance(y.creator_node, NormalizedFunction)


X = kernels.arrays(SHAPE, 0)


def test_hooks_see_both_functions():
    layers, fusion, hook = [normalization(), F.relu], Fusion({(0, 2): True}), Hook()
    assert is_fused(fusion, layers, X)
    with hook:
        assert not is_fused(fusion, layers, X)
    assert hook.labels == ["BatchNormalization", "ReLU"]
    layers[0].add_hook(LinkHook())
    assert not is_fused(fusion, layers, X)


def test_the_configuration_and_options_may_change_between_calls():
    layers, fusion = [normalization(), F.relu], Fusion({(0, 2): True})
    assert is_fused(fusion, layers, X)
    with chainer.using_config("train", False):
        assert not is_fused(fusion, layers, X)
        assert "FixedBatchNormalization is not fused" in fusion.reasons[0]
    layers[0].decay, layers[0].eps = 0.5, 1e-2
    others = copy.deepcopy(layers)
    call = lambda v: run_layers(layers, fusion, (v,))  # noqa: E731
    label, found = trained(call, layers, [X])
    _, expected = trained(functools.partial(one_by_one, others), others, [X])
    assert " > " in label
    assert_same_bits(found, expected)
    with chainer.using_config("in_recomputing", True):
        before = layers[0].avg_mean.copy()
        assert is_fused(fusion, layers, X)
        np.testing.assert_array_equal(layers[0].avg_mean, before)


def test_trials_count_for_nothing():
    link = normalization()
    link.cleargrads()
    before = [a.copy() for a in (link.avg_mean, link.avg_var)]
    places = link.avg_mean, link.avg_var
    hook = Hook()
    hook.minds_fusion = False
    with hook:
        report = fuse([link, F.relu], X)
    (choice,) = report.choices
    assert (choice.start, choice.end, choice.is_exact) == (0, 2, True)
    assert choice.functions == "BatchNormalization > ReLU"
    assert choice.largest_difference == 0
    # 8 of the head and 5 of the activation, against 3 and 5.
    assert (choice.bytes_before, choice.bytes_after) == (13 * X.nbytes, 8 * X.nbytes)
    # The layers have run once.
    assert link.gamma.grad is None and link.N == 0
    assert link.avg_mean is places[0] and link.avg_var is places[1]
    mean = X.mean((0, 2, 3))
    np.testing.assert_allclose(link.avg_mean, 0.9 * before[0] + 0.1 * mean, rtol=1e-5)
    # By one function or by two, as was measured.
    assert len(hook.labels) == 2 - choice.is_fused


def test_gradients_have_gradients():
    x, shortcut = (kernels.arrays((7, N_CHANNELS), seed) for seed in range(2))
    layers = [Added(), F.tanh]
    layers[0].norm = normalization()
    fusion = Fusion({(0, 2): True})
    results = []
    for run in (
        lambda *v: run_layers(layers, fusion, v),
        functools.partial(one_by_one, layers),
    ):
        variables = [chainer.Variable(each) for each in (x, shortcut)]
        y = run(*variables)
        norm = layers[0].norm
        wanted = [*variables, norm.gamma, norm.beta]
        first = chainer.grad(
            [y], wanted, [chainer.Variable(x)], enable_double_backprop=True
        )
        total = sum(F.sum(g * g) for g in first)
        second = chainer.grad([total], wanted)
        results.append([g.array for g in (*first, *second)])
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


class Own(L.BatchNormalization):
    pass


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([Own(N_CHANNELS), F.relu], "parameters"),
        ([L.BatchNormalization(N_CHANNELS, use_beta=False), F.relu], "parameters"),
        ([normalization(), F.sum], "Sum is not fused"),
        ([normalization(), normalization()], "nothing follows BatchNormalization"),
        ([normalization(axis=(0, 2)), F.relu], "float32 channels"),
    ],
)
def test_what_ends_a_chain_is_named(layers, reason):
    fusion = Fusion()
    x = X
    if "channels" in reason:
        layers[0] = L.BatchNormalization(axis=(0, 2))
        layers[0](X)
    run_layers(layers, fusion, (x,))
    assert any(reason in each for each in fusion.reasons.values())
    assert fusion.choices == {}


def test_the_input_must_not_be_used_besides():
    @chainer_kernels.fusible
    class Twice(Added):
        def forward(self, x):
            return F.relu(self.norm(x) + x)

    fusion = Fusion()
    run_layers([Twice()], fusion, (X,))
    assert "not among its inputs" in fusion.reasons[0]


@pytest.mark.parametrize("what", ["one sample", "no size", "half"])
def test_others_are_left_to_chainer(what):
    link, x = normalization(), X
    if what == "one sample":
        x = X[:1, :, :1, :1]
    elif what == "no size":
        link = L.BatchNormalization(axis=(0, 2, 3))
    else:
        x = X.astype("e")
    with mock.patch("warnings.warn"):
        fusion = Fusion({(0, 2): True})
        assert not is_fused(fusion, [link, F.relu], x)
    # It has a size now.
    assert is_fused(fusion, [link, F.relu], X)
