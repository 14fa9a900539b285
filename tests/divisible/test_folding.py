"""Models that fold batch normalizations where nothing trains."""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, pop, stash
from divisible.layer_pass import timed_layers
from tests.support.fusion import assert_same_bits

# Enough samples that folding gains.
X = np.random.RandomState(0).randn(60, 30).astype("f")


def added(x, y):
    return x + y


def normalized(n=5):
    np.random.seed(0)
    norm = L.BatchNormalization(n, initial_gamma=chainer.initializers.Normal(1))
    norm.avg_mean[...], norm.avg_var[...] = np.random.randn(n), np.random.rand(n) + 0.5
    return norm


def predicted(layers, x=X):
    """Returns the output of a model where nothing trains, and its functions."""
    functions = []

    class Quiet(chainer.FunctionHook):
        minds_fusion = False

        def forward_preprocess(self, function, in_data):
            functions.append(function.label)

    with chainer.using_config("train", False), chainer.no_backprop_mode(), Quiet():
        return layers(x).array, functions


FOLDED, ONE_BY_ONE = ["LinearFunction"], ["LinearFunction", "FixedBatchNormalization"]


def test_prediction_folds_normalizations_until_it_is_taken_back():
    layers = Divisible(L.Linear(30, 5), normalized(), F.relu)
    expected, functions = predicted(layers)
    assert functions == [*ONE_BY_ONE, "ReLU"]
    layers.measure_fusion()
    found, functions = predicted(layers)
    assert functions == [*FOLDED, "ReLU"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert predicted(copy.deepcopy(layers))[1] == functions
    layers.fuse("none")
    assert_same_bits([predicted(layers)[0]], [expected])


def test_a_cut_and_a_skip_connection_part_a_pair():
    between = Divisible(L.Linear(30, 5), stash("s"), normalized(), pop("s"), added)
    whole = Divisible(L.Linear(30, 5), normalized())
    for layers in (between, whole):
        layers.fuse(())
    assert predicted(between)[1] == [*ONE_BY_ONE, "_ + _"]
    assert predicted(whole)[1] == FOLDED
    halves = whole.divide(0, 1), whole.divide(1, 2)
    y, first = predicted(halves[0])
    y, second = predicted(halves[1], y)
    assert first + second == ONE_BY_ONE
    np.testing.assert_allclose(y, predicted(whole)[0], rtol=1e-4, atol=1e-5)


def test_a_weight_that_is_used_transposed_is_not_folded():
    layers = Divisible(L.Linear(5, 5), F.relu, L.Linear(5, 5), normalized())
    layers.tie("/0/W", "/2/W", transpose=True)
    expected, _ = predicted(layers, X[:, :5])
    layers.fuse(())
    assert_same_bits([predicted(layers, X[:, :5])[0]], [expected])


def test_a_tied_weight_is_folded_where_a_normalization_follows():
    layers = Divisible(L.Linear(5, 5), normalized(), F.relu, L.Linear(5, 5))
    layers.tie("/0/W", "/3/W")
    expected, _ = predicted(layers, X[:, :5])
    layers.fuse(())
    found, functions = predicted(layers, X[:, :5])
    assert functions == [*FOLDED, "ReLU", *FOLDED]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_that_are_timed_are_not_folded():
    layers = Divisible(L.Linear(30, 5), normalized())
    layers.fuse(())
    with timed_layers() as seconds:
        assert predicted(layers)[1] == ONE_BY_ONE
    assert set(seconds) == {0, 1}


def test_an_error_in_a_folded_pair_has_the_position_of_a_layer():
    layers = Divisible(F.identity, L.Linear(30, 5), normalized())
    layers.fuse(())
    with pytest.raises(chainer.utils.type_check.InvalidType) as error:
        predicted(layers, X[:, :7])
    assert error.value.layer_position == 1
