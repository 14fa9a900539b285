"""Several linear layers, and what is between them, as one function."""

import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_kernels
from chainer_kernels.catalogue import backward_of, weights_of
from chainer_kernels.contributions import Scratch
from chainer_kernels.fusion import perceptrons
from chainer_kernels.fusion.fusing import Fusion
from chainer_kernels.fusion.perceptron_function import PerceptronFunction
from chainer_kernels.fusion.report import run_layers
from divisible import Divisible
from pipeline.stages.held import Graph
from pipeline.stages.leaving_arrays import take_out
from tests.support import kernels
from tests.support.bfloat16 import in_bfloat16
from tests.support.fusion import MARKED, always_faster, assert_same_bits, one_by_one

LAYERS = {
    "tanh": lambda: [L.Linear(6, 12), F.tanh, L.Linear(12, 5)],
    "three": lambda: [
        L.Linear(6, 12),
        F.relu,
        F.sigmoid,
        L.Linear(12, 7, nobias=True),
        F.tanh,
        L.Linear(7, 5),
        F.relu,
    ],
    "nothing between": lambda: [L.Linear(6, 12, nobias=True), L.Linear(12, 5)],
    # The backward needs the product, and not the output.
    "marked": lambda: [L.Linear(6, 12), MARKED["shared"], L.Linear(12, 5)],
}


def made(name):
    np.random.seed(0)
    layers = LAYERS[name]()
    for layer in layers:
        if isinstance(layer, L.Linear) and layer.b is not None:
            layer.b.array[...] = np.random.normal(size=layer.b.shape)
    return layers


def fused(layers, x, **options):
    """Runs layers as one function, whatever takes less time."""
    fusion = Fusion({(0, len(layers)): True}, **options)
    return lambda x: run_layers(layers, fusion, (x,))


def links_of(layers):
    return [layer for layer in layers if isinstance(layer, chainer.Link)]


def trained(call, layers, x):
    """Returns the output, and the gradients of the input and all parameters."""
    for link in links_of(layers):
        link.cleargrads()
    leaf = chainer.Variable(x)
    y = call(leaf)
    y.grad = kernels.arrays(y.shape, 3)
    y.backward()
    parameters = [p.grad for link in links_of(layers) for p in link.params()]
    return [y.array, leaf.grad, *parameters], y.creator


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("n_rows", [1, 4, 33])
def test_all_bits_are_those_of_the_layers_one_by_one(name, n_rows):
    layers, x = made(name), kernels.arrays((n_rows, 6), 1)
    expected, _ = trained(lambda x: one_by_one(layers, x), layers, x)
    found, creator = trained(fused(layers, x, only_exact=True), layers, x)
    assert type(creator) is PerceptronFunction
    assert creator.label.count("Linear") == len(links_of(layers))
    assert_same_bits(found, expected)


@pytest.mark.parametrize("name", ["tanh", "three", "marked"])
def test_gradients_of_gradients(name):
    layers, x = made(name), kernels.arrays((4, 6), 1)

    def second(call):
        leaf = chainer.Variable(x)
        inputs = [leaf, layers[0].W]
        y = F.sum(call(leaf) ** 2)
        first = chainer.grad([y], inputs, enable_double_backprop=True)
        loss = sum(F.sum(each**2) for each in first)
        return [each.array for each in chainer.grad([loss], inputs)]

    found = second(fused(layers, x))
    for one, other in zip(found, second(lambda x: one_by_one(layers, x)), strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5 * np.abs(other).max())


@in_bfloat16
def test_gradients_of_gradients_are_in_the_dtype_of_the_forward():
    layers, x = made("tanh"), chainer.Variable(kernels.arrays((4, 6), 1))
    y, wanted = fused(layers, x)(x), [x, layers[0].W]
    gy = chainer.Variable(kernels.arrays(y.shape, 3))
    expected = chainer.grad([y], wanted, [gy], enable_double_backprop=True)
    with chainer_kernels.products("bfloat16"):
        found = chainer.grad([y], wanted, [gy], enable_double_backprop=True)
    assert_same_bits([g.array for g in found], [g.array for g in expected])


@pytest.mark.parametrize("name", LAYERS)
def test_contributions_are_what_backward_returns(name):
    layers, x = made(name), kernels.arrays((4, 6), 1)
    found, function = trained(fused(layers, x), layers, x)
    parameters = [node.get_variable() for node in function.inputs[1:]]
    by_number = dict(enumerate(parameters, 1))
    gy = kernels.arrays(found[0].shape, 3)
    assert backward_of(PerceptronFunction).is_splittable
    shares = weights_of(PerceptronFunction)(function, by_number, gy)
    assert shares.keys() == by_number.keys()
    for i, parameter in by_number.items():
        out = np.full(parameter.shape, np.nan, "f")
        shares[i].write(out)
        np.testing.assert_array_equal(out, parameter.grad)
        shares[i].add(out, Scratch())
        np.testing.assert_allclose(out, 2 * parameter.grad, 1e-5, 1e-6)


def span_of(layers, x):
    fusion = Fusion()
    with always_faster():
        run_layers(layers, fusion, (x,))
    return list(fusion.choices)


def test_chains_go_on_over_small_linear_layers_only(monkeypatch):
    x = kernels.arrays((4, 6), 1)
    assert span_of(made("three"), x) == [(0, 7)]
    monkeypatch.setattr(perceptrons, "_LARGEST", 4 * 12 * 7 + 1)
    assert span_of(made("three"), x) == [(0, 7)]
    # The second layer is too large, and begins a chain of another kind.
    monkeypatch.setattr(perceptrons, "_LARGEST", 4 * 12 * 7)
    assert span_of(made("three"), x) == [(0, 3), (3, 5), (5, 7)]


def test_chains_end_where_another_kind_goes_further():
    np.random.seed(0)
    shared = L.Linear(6, 6)
    x = kernels.arrays((4, 6), 1)
    # Masks are drawn in a chain with one product only.
    layers = [L.Linear(6, 6), F.relu, F.dropout, L.Linear(6, 5)]
    assert span_of(layers, x) == [(0, 3)]
    assert span_of([shared, F.relu, shared, F.tanh], x) == [(0, 2), (2, 4)]
    # Images are no vectors.
    assert span_of([L.Linear(6, 6), F.relu, L.Linear(6, 5)], x.reshape(4, 2, 3)) == [
        (0, 2)
    ]


def test_layers_that_change_run_one_by_one():
    layers, x = made("tanh"), kernels.arrays((4, 6), 1)
    call = fused(layers, x)
    assert type(call(x).creator) is PerceptronFunction
    with chainer_kernels.products("bfloat16"):
        assert type(call(x).creator) is not PerceptronFunction
    with chainer_kernels.disabled():
        assert type(call(x).creator) is not PerceptronFunction
    layers[2].W.array = kernels.arrays((3, 12), 2)
    layers[2].b.array = kernels.arrays((3,), 2)
    np.testing.assert_array_equal(call(x).array, one_by_one(layers, x).array)


def test_a_layer_that_changes_its_class_or_its_weights_runs_by_itself():
    class Doubled(L.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layers, x = made("tanh"), kernels.arrays((4, 6), 1)
    call = fused(layers, x)
    expected = 2 * call(x).array
    # As layers that are quantized or skip blocks from now on.
    layers[2].__class__ = Doubled
    np.testing.assert_array_equal(call(x).array, expected)
    np.random.seed(0)
    model = Divisible(L.Linear(6, 6), F.tanh, L.Linear(6, 6))
    model.fuse([(0, 3)])
    assert type(model(x).creator) is PerceptronFunction
    model.tie("/0/W", "/2/W", transpose=True)
    W = model[0].W.array
    expected = np.tanh(x @ W.T) @ W
    np.testing.assert_allclose(model(x).array, expected, 1e-4, 1e-5)


def test_layers_without_a_size_are_waited_for():
    x = kernels.arrays((4, 6), 1)
    layers = [L.Linear(6, 12), F.relu, L.Linear(None, 5)]
    fusion = Fusion()
    with always_faster():
        run_layers(layers, fusion, (x,))
        assert fusion.is_early and not fusion.choices
        run_layers(layers, fusion, (x,))
    assert list(fusion.choices) == [(0, 3)]


def test_a_decided_chain_ends_where_it_did_in_training():
    layers, x = (
        [L.Linear(6, 6), F.relu, F.dropout, L.Linear(6, 5)],
        np.ones((4, 6), "f"),
    )
    fusion = Fusion({(0, 3): True})
    for train in (True, False):
        with chainer.using_config("train", train):
            y = run_layers(layers[:3], fusion, (x,))
            assert run_layers(layers, fusion, (x,)).shape == (4, 5)
            assert "Linear >" in y.creator.label
            found = run_layers(layers, fusion, (x,)).creator.inputs[0].creator_node
            assert found.label == y.creator.label


def test_all_that_waits_for_the_backward_can_leave_memory():
    layers, x = made("three"), kernels.arrays((300, 6), 1)
    expected, _ = trained(fused(layers, x), layers, x)
    leaf = chainer.Variable(x.copy())
    y = fused(layers, x)(leaf)
    hidden = [weakref.ref(a) for a in y.creator._arrays]
    left = take_out(Graph((leaf,), {}, (y,), {}), links_of(layers))
    copies = [buffer.copy() for buffer in left.buffers]
    del left.buffers[:]
    assert not any(each() is not None for each in hidden)
    left.come_back(copies)
    for link in links_of(layers):
        link.cleargrads()
    y.grad = kernels.arrays(y.shape, 3)
    y.backward()
    parameters = [p.grad for link in links_of(layers) for p in link.params()]
    assert_same_bits([y.array, leaf.grad, *parameters], expected)


def test_the_array_of_a_gradient_may_get_other_values():
    layers, x = made("tanh"), kernels.arrays((4, 6), 1)
    leaf, gy = chainer.Variable(x), kernels.arrays((4, 5), 3)
    y = fused(layers, x)(leaf)
    found = []
    for _ in range(2):
        (gx,) = chainer.grad([y], [leaf], [chainer.Variable(gy)])
        found.append(gx.array.copy())
        gy *= 2
    np.testing.assert_array_equal(found[1], 2 * found[0])


def test_gradients_of_gradients_of_a_layer_in_two_chains():
    np.random.seed(0)
    start = [L.Linear(6, 6), F.tanh]
    layers = [*start, L.Linear(6, 6), F.tanh, *start, L.Linear(6, 5)]
    x = kernels.arrays((4, 6), 1)
    decisions = {(0, 4): True, (4, 7): True}

    def second(call):
        y = F.sum(call(chainer.Variable(x)) ** 2)
        first = chainer.grad([y], [layers[0].W], enable_double_backprop=True)
        return [first[0].array, chainer.grad(first, [layers[0].W])[0].array]

    fusion = Fusion(decisions)
    found = second(lambda x: run_layers(layers, fusion, (x,)))
    for one, other in zip(found, second(lambda x: one_by_one(layers, x)), strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5 * np.abs(other).max())
