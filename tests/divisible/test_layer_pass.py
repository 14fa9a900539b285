"""What is said of a layer that got more inputs than it takes."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible

X, T = np.ones((4, 3), np.float32), np.zeros(4, np.int32)


@pytest.mark.parametrize(
    "layer, n_given, n_taken",
    [(L.Linear(3, 2), 2, 1), (L.Linear(3, 2), 101, 1), (F.relu, 2, 1)],
)
def test_more_inputs_than_the_first_layer_takes(layer, n_given, n_taken):
    model = Divisible(layer)
    words = f"layer 0 takes {n_taken} of the {n_given} inputs .* PipelineUpdater"
    with pytest.raises(TypeError, match=words) as caught:
        model(*[X] * n_given)
    assert caught.value.layer_position == 0
    assert caught.value.__cause__ is not None


def test_more_outputs_than_the_next_layer_takes():
    model = Divisible(L.Linear(3, 2), lambda x: (x, x), L.Linear(2, 2))
    with pytest.raises(TypeError, match="layer 2 takes 1 of the 2 inputs .* given$"):
        model(X)


class Failing(chainer.Link):
    def forward(self, x, y, z=None):
        raise KeyError("its own")


@pytest.mark.parametrize("layer", [Failing(), Failing().forward])
def test_another_error_of_a_layer_stays_as_it_is(layer):
    with pytest.raises(KeyError, match="its own"):
        Divisible(layer)(X, X)


def test_chainers_updater_is_told_of_ours():
    model = Divisible(L.Linear(3, 2))
    optimizer = chainer.optimizers.SGD().setup(model)
    iterator = chainer.iterators.SerialIterator([(X[0], T[0])] * 4, 4)
    updater = chainer.training.updaters.StandardUpdater(iterator, optimizer)
    with pytest.raises(TypeError, match="PipelineUpdater and PipelineEvaluator"):
        updater.update()
