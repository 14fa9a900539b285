"""Models in float16, and losses in float32."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init
from divisible.streaming import Streamed
from mixed_precision import float32_loss, to_float16


def test_loss_in_float32_of_arguments_by_name():
    y, t = np.zeros((2, 3), np.float16), np.array([0, 2], np.int32)
    lossfun = float32_loss(F.softmax_cross_entropy)
    assert lossfun(x=y, t=t).dtype == np.float32


def test_weights_too_large_for_float16():
    with pytest.raises(OverflowError, match="/W"):
        to_float16(L.Linear(2, 2, initialW=1e6))
    later = to_float16(L.Linear(None, 2, initialW=1e6))
    with pytest.raises(OverflowError, match="that is sized now"):
        later(np.ones((1, 3), np.float16))


@pytest.mark.parametrize("dtype", [None, np.float16, np.float64])
def test_weights_that_are_made_later_in_float16(dtype):
    initializer = chainer.initializers.HeNormal(dtype=dtype)
    weights = []
    for n_in in (4, None):
        np.random.seed(0)
        model = to_float16(Divisible(L.Linear(n_in, 3, initialW=initializer)))
        model(np.ones((2, 4), np.float16))
        weights.append(model[0].W.array)
        assert weights[-1].dtype == np.float16
    np.testing.assert_array_equal(*weights)


def test_a_model_that_is_not_made_becomes_float16():
    """Its stages have the weights that they would have if they were cast later."""

    def build():
        with deferred_init(seed=0):
            shared = L.Linear(5, 5)
            return Divisible(
                Streamed(L.Linear(4, 5), segment=2),
                L.BatchNormalization(5),
                shared,
                L.LSTM(5, 5),
                L.Linear(None, 5),
                shared,
            )

    models = to_float16(build().divide()), to_float16(build()).divide()
    x = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float16)
    outputs = [model(x).array for model in models]
    assert outputs[0].dtype == np.float16
    np.testing.assert_array_equal(*outputs)
    for (path, param), twin in zip(models[0].namedparams(), models[1].params()):
        assert param.dtype == twin.dtype, path
        np.testing.assert_array_equal(param.array, twin.array, path)
