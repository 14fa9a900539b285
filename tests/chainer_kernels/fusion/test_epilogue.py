"""Products that are gone on with in their own array."""

import functools
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import TimerHook

import chainer_kernels
from chainer_kernels.fusion.epilogue import EpilogueFunction
from chainer_kernels.fusion.fusing import Fusion
from chainer_kernels.fusion.products import is_product
from chainer_kernels.fusion.report import fuse, run_layers
from chainer_kernels.fusion.side_inputs import Surroundings
from tests.support import kernels
from tests.support.fusion import MARKED, assert_same_bits, one_by_one

IMAGES, ROWS = (4, 3, 7, 6), (40, 5)


def linear(n_in=5, n_out=6, **options):
    return functools.partial(L.Linear, n_in, n_out, initial_bias=1.5, **options)


def convolution(n_out=6, **options):
    return functools.partial(L.Convolution2D, 3, n_out, 3, initial_bias=0.5, **options)


PRODUCTS = {
    "linear": (linear(), ROWS),
    "wide": (linear(n_out=300), ROWS),
    "many rows": (linear(n_out=8), (3000, 5)),
    "no bias": (linear(nobias=True), ROWS),
    "of images": (linear(126), IMAGES),
    "convolution": (convolution(pad=1, stride=2), IMAGES),
    "convolution without bias": (convolution(nobias=True), IMAGES),
    "in groups": (convolution(groups=3), IMAGES),
    "of rows": (functools.partial(L.Convolution1D, 3, 4, 3, dilate=2), (4, 3, 9)),
}
TAILS = {
    "relu": [F.relu],
    "tanh": [F.tanh],
    "two": [F.relu, F.sigmoid],
    "dropout": [F.relu, F.dropout],
    "only dropout": [F.dropout],
    "marked": [MARKED["shared"]],
}


def trained(call, layers, x, seed=7):
    """Returns the output of layers on an array, and all gradients."""
    np.random.seed(seed)
    layers[0].cleargrads()
    variable = chainer.Variable(x)
    y = call(variable)
    y.grad = np.cos(np.arange(y.size, dtype="f")).reshape(y.shape)
    y.backward()
    gradients = [param.grad for _, param in sorted(layers[0].namedparams())]
    return y, [y.array, variable.grad, *gradients]


def both(layers, x):
    """Returns what layers leave behind, as a chain and one by one."""
    fusion = Fusion({(0, len(layers)): True})
    call = functools.partial(run_layers, layers, fusion)
    y, found = trained(lambda x: call((x,)), layers, x)
    _, expected = trained(functools.partial(one_by_one, layers), layers, x)
    return y.creator_node, found, expected


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_it_has_the_bits_of_the_layers(product, tail):
    make, shape = PRODUCTS[product]
    np.random.seed(0)
    layers = [make(), *TAILS[tail]]
    node, found, expected = both(layers, kernels.arrays(shape, 1))
    assert_same_bits(found, expected)
    # The backward of what needs the product finds that only with the bias in it.
    is_in_place = tail in ("relu", "tanh", "only dropout")
    adds_bias = isinstance(layers[0], L.Linear) and layers[0].b is not None
    assert isinstance(node, EpilogueFunction) == (is_in_place or adds_bias)


def test_the_array_of_the_product_is_that_of_the_output():
    layers, arrays = [linear()(), F.relu], []

    class Hook(chainer.FunctionHook):
        minds_fusion = False

        def forward_postprocess(self, function, in_data):
            arrays.append((function.label, in_data[0]))

    fusion = Fusion({(0, 2): True})
    with Hook():
        y = run_layers(layers, fusion, (kernels.arrays(ROWS, 1),))
    (_, _), (label, product) = arrays
    assert label == "Linear > ReLU" and product is y.array


@pytest.mark.parametrize("tail", ["relu", "marked", "two"])
def test_derivatives_of_derivatives_are_chainers(tail):
    np.random.seed(0)
    layers = [linear()(), *TAILS[tail]]
    x = kernels.arrays(ROWS, 1)

    def second(call):
        layers[0].cleargrads()
        variable = chainer.Variable(x)
        y = call(variable)
        (gx,) = chainer.grad([y], [variable], enable_double_backprop=True)
        (F.sum(gx * gx) + F.sum(F.tanh(y))).backward()
        return [variable.grad, layers[0].W.grad, layers[0].b.grad]

    fusion = Fusion({(0, len(layers)): True})
    found = second(lambda x: run_layers(layers, fusion, (x,)))
    expected = second(functools.partial(one_by_one, layers))
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_layer_may_have_side_inputs():
    class Taking:
        joined_by = staticmethod(F.add)

        def join(self, x, taken):
            return x + taken[0]

    taking, side_input = Taking(), chainer.Variable(kernels.arrays((40, 6), 3))
    layers, x = [linear()(), taking, F.relu], kernels.arrays(ROWS, 1)
    surroundings = Surroundings(
        side_inputs=lambda layer: (side_input,) if layer is taking else None
    )
    fusion = Fusion({(0, 3): True})
    n_layers, y = fusion.run(layers, 0, 0, chainer.Variable(x), surroundings)
    expected = F.relu(layers[0](x) + side_input)
    assert n_layers == 3
    assert_same_bits([y.array], [expected.array])
    y.grad = expected.grad = kernels.arrays((40, 6), 4)
    found = []
    for each in (y, expected):
        side_input.cleargrad()
        layers[0].cleargrads()
        each.backward()
        found.append([side_input.grad, layers[0].b.grad, layers[0].W.grad])
    assert_same_bits(*found)
    # Of another shape, it is not taken.
    side_input = chainer.Variable(kernels.arrays((1, 6), 3))
    assert fusion.run(layers, 0, 0, chainer.Variable(x), surroundings) is None


def test_a_link_may_lose_outputs():
    class Taking:
        joined_by = staticmethod(F.add)

        def join(self, x, taken):
            return x + taken[0]

    taking, link = Taking(), linear(n_out=8)()
    layers, x = [link, taking, F.relu], chainer.Variable(kernels.arrays(ROWS, 1))
    fusion = Fusion({(0, 3): True})

    def run(side_input):
        around = Surroundings(
            side_inputs=lambda k: (side_input,) if k is taking else None
        )
        return fusion.run(layers, 0, 0, x, around)

    for n in (8, 5):
        link.W.array, link.b.array = link.W.array[:n].copy(), link.b.array[:n].copy()
        side_input = kernels.arrays((len(x), n), 3)
        found = run(side_input)
        assert found is not None
        assert_same_bits([found[1].array], [F.relu(link(x) + side_input).array])


def test_a_product_in_another_memory_order_is_left_as_it_is():
    np.random.seed(0)
    layers, fusion = [linear()(), F.relu, F.dropout], Fusion({(0, 3): True})
    x = chainer.Variable(kernels.arrays(ROWS, 1))
    run_layers(layers, fusion, (x,))

    def turned(link, x):
        y = F.linear(x, link.W)
        y.array = np.asfortranarray(y.array)
        return y

    with mock.patch("chainer_kernels.fusion.products.product", turned):
        y, found = trained(lambda x: run_layers(layers, fusion, (x,)), layers, x.array)
    assert y.creator_node.label == "Dropout"
    _, expected = trained(functools.partial(one_by_one, layers), layers, x.array)
    assert_same_bits(found, expected)


class Own(L.Linear):
    """A link of a user."""


def patched():
    link = L.Linear(5, 6)
    link.forward = lambda x: x
    return link


@pytest.mark.parametrize(
    "link", [Own(5, 6), patched(), L.Bias(shape=(5,)), F.relu, chainer.Sequential()]
)
def test_others_are_no_products(link):
    assert not is_product(link)


def test_what_has_no_size_yet_gets_it_in_a_call_that_counts():
    layers, fusion = [L.Linear(None, 6), F.relu], Fusion({(0, 2): True})
    x = kernels.arrays(ROWS, 1)
    assert run_layers(layers, fusion, (x,)).creator_node.label == "ReLU"
    assert run_layers(layers, fusion, (x,)).creator_node.label == "Linear > ReLU"


def test_parameters_may_be_others_later():
    layers, fusion = [linear()(), F.relu], Fusion({(0, 2): True})
    x = kernels.arrays(ROWS, 1)
    run_layers(layers, fusion, (x,))
    layers[0].W.array[...] *= 2
    assert_same_bits(
        [run_layers(layers, fusion, (x,)).array], [one_by_one(layers, x).array]
    )
    layers[0].b = None
    assert run_layers(layers, fusion, (x,)).creator_node.label == "ReLU"
    layers[0] = linear()()
    layers[0].W.array = layers[0].W.array.astype("d")
    assert run_layers(layers, fusion, (x,)).creator_node.label == "ReLU"


def test_hooks_of_the_product_see_the_layers():
    layers, fusion = [linear()(), F.relu], Fusion({(0, 2): True})
    x = kernels.arrays(ROWS, 1)
    with TimerHook() as hook:
        assert run_layers(layers, fusion, (x,)).creator_node.label == "ReLU"
    assert len(hook.call_history) == 1
    assert run_layers(layers, fusion, (x,)).creator_node.label == "Linear > ReLU"


def test_a_measurement_decides_and_leaves_no_gradient():
    layers = [linear()(), F.relu, F.dropout, L.BatchNormalization(6), abs]
    layers[0].cleargrads()
    report = fuse(layers, kernels.arrays((400, 5), 1))
    choice = report.choices[0]
    assert (choice.start, choice.end, choice.is_exact) == (0, 3, True)
    assert choice.functions == "Linear > ReLU > Dropout"
    assert choice.largest_difference == 0 and choice.bytes_after < choice.bytes_before
    assert layers[0].b.grad is None and layers[0].W.grad is None
    reasons = dict(report.not_fused)
    assert reasons[4] == "it is not marked @chainer_kernels.fusible"
    assert not set(reasons) & {0, 1, 2}


def test_a_convolution_that_nothing_follows_is_in_no_chain():
    layers = [convolution()(), L.BatchNormalization(6), F.relu]
    report = fuse(layers, kernels.arrays(IMAGES, 1))
    assert [(c.start, c.end) for c in report.choices] == [(1, 3)]
    words = "nothing follows Convolution2D that can go on in its array"
    assert dict(report.not_fused) == {0: words}


def test_without_kernels_the_layers_run():
    layers, fusion = [linear()(), F.relu], Fusion({(0, 2): True})
    with chainer_kernels.disabled():
        y = run_layers(layers, fusion, (kernels.arrays(ROWS, 1),))
    assert y.creator_node.label == "ReLU"
