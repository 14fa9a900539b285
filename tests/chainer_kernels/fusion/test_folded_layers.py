"""Where a list of layers has normalizations to fold."""

import chainer
import chainer.functions as F
import chainer.links as L
import pytest

import chainer_kernels
from chainer_kernels.fusion.folded_layers import run
from tests.support import kernels
from tests.support.folding import (
    Functions,
    assert_close,
    convolution,
    fill,
    normalization,
    nothing_trains,
    unfolded,
)

X = kernels.arrays((4, 3, 9, 8), 0)
LAYERS = [convolution(), normalization(8)]


def runs(layers, x=X):
    """Returns how many layers run as one, and what they compute; or ``None``."""
    with nothing_trains():
        return run(layers, 0, x)


def test_a_pair_runs_as_one_wherever_it_is():
    layers = [F.relu, *LAYERS, F.relu]
    with nothing_trains():
        assert [run(layers, i, X) is None for i in range(4)] == [
            True,
            False,
            True,
            True,
        ]
        n_layers, y = run(layers, 1, (X,))
    assert n_layers == 2
    assert_close(y.array, unfolded(LAYERS, X))


class OwnConvolution(L.Convolution2D):
    pass


class OwnNormalization(L.BatchNormalization):
    pass


def with_own_forward(link):
    link.forward = link.forward
    return link


class LinkHook(chainer.LinkHook):
    name = "links"


def with_hook(link):
    link.add_hook(LinkHook())
    return link


@pytest.mark.parametrize(
    "layers",
    [
        [convolution()],
        [convolution(), F.relu],
        [F.relu, normalization(3)],
        [OwnConvolution(3, 8, 3), normalization(8)],
        [convolution(), fill(OwnNormalization(8))],
        [with_own_forward(convolution()), normalization(8)],
        [convolution(), with_own_forward(normalization(8))],
        [with_hook(convolution()), normalization(8)],
        [convolution(), with_hook(normalization(8))],
        [L.Deconvolution2D(3, 8, 3), normalization(8)],
        # No gain.
        [L.Linear(216, 8), normalization(8)],
    ],
)
def test_others_run_one_by_one(layers):
    assert runs(layers) is None


@pytest.mark.parametrize("x", [(X, X), ()])
def test_other_inputs_are_left_to_the_layer(x):
    assert runs(LAYERS, x) is None


def test_nothing_is_folded_where_something_trains():
    for train, backprop in ((True, False), (False, True)):
        with (
            chainer.using_config("train", train),
            chainer.using_config("enable_backprop", backprop),
        ):
            assert run(LAYERS, 0, X) is None
    assert runs(LAYERS) is not None


def test_hooks_that_look_see_both_functions():
    with Functions(minds_fusion=True):
        assert runs(LAYERS) is None
    with Functions() as quiet:
        assert runs(LAYERS) is not None
    assert quiet.labels == ["Convolution2DFunction"]
    with LinkHook():
        assert runs(LAYERS) is None
    with chainer.using_config("debug", True):
        assert runs(LAYERS) is None
    with chainer_kernels.disabled():
        assert runs(LAYERS) is None


def sequential():
    inner = chainer.Sequential(convolution(8, 8), normalization(8))
    return chainer.Sequential(convolution(), normalization(8), F.relu, inner, F.tanh)


def test_pairs_within_a_sequential_are_folded():
    layer = sequential()
    with Functions() as hook:
        n_layers, y = runs([layer, F.relu], (X,))
    assert n_layers == 1
    convolved = "Convolution2DFunction"
    assert hook.labels == [convolved, "ReLU", convolved, "Tanh"]
    assert_close(y.array, unfolded([layer], X))


def test_layers_of_a_sequential_may_return_several_values():
    layer = chainer.Sequential(lambda x: (x, x), lambda x, y: x + y, *LAYERS)
    _, y = runs([layer])
    assert_close(y.array, unfolded([layer], X))


class OwnSequential(chainer.Sequential):
    pass


@pytest.mark.parametrize(
    "layer",
    [
        chainer.Sequential(F.relu, convolution()),
        OwnSequential(*LAYERS),
        with_own_forward(sequential()),
        with_hook(sequential()),
        chainer.Sequential(with_hook(convolution()), normalization(8)),
        # Its first call draws weights.
        chainer.Sequential(*LAYERS, L.Convolution2D(None, 4, 3)),
    ],
)
def test_other_sequentials_are_called(layer):
    assert runs([layer]) is None
