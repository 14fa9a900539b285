"""Layers that are recomputed, beside others that are not."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, pop, stash
from pipeline import Pipeline

X = np.random.RandomState(0).normal(size=(5, 4)).astype(np.float32)
T = np.array([0, 1, 2, 0, 1], np.int32)


def masked(x):
    return F.dropout(x, return_mask=True, ratio=0.0)


def in_a_list(x):
    return [x, 2 * x]


def in_a_dictionary(x):
    return {"x": x, "nested": ([x * x, None], "text"), "n": 3}


CASES = {
    "None": (masked, lambda x, mask: x if mask is None else x * mask),
    "list": (in_a_list, lambda xs: xs[0] * xs[1]),
    "dictionary": (in_a_dictionary, lambda d: d["x"] + d["nested"][0][0] * d["n"]),
    "array": (
        lambda x: (x, np.ma.masked_less(X[: len(x)], 0)),
        lambda x, m: x * m.sum(),
    ),
}


def model_of(first, second, marked):
    np.random.seed(1)
    layers = [L.Linear(4, 4), first, second, L.Linear(4, 3)]
    model = Divisible()
    for position, layer in enumerate(layers):
        model.append(layer, recompute=position in marked)
    return model


@pytest.mark.parametrize("marked", [(2,), (0, 1), (1,), (2, 3)])
@pytest.mark.parametrize("name", CASES)
def test_what_passes_serially_passes_between_them(name, marked):
    whole = model_of(*CASES[name], ())
    loss = F.softmax_cross_entropy(whole(X), T)
    whole.cleargrads()
    loss.backward()
    model = model_of(*CASES[name], marked)
    with Pipeline(model.divide(), MPI.COMM_SELF, n_microbatches=1) as pipe:
        assert pipe.step(X, T)["loss"] == pytest.approx(float(loss.array))
        for path, param in whole.namedparams():
            actual = dict(model.namedparams())[path].grad
            np.testing.assert_allclose(actual, param.grad, rtol=1e-5, atol=1e-6)
        with chainer.using_config("train", False):
            expected = whole(X).array
        np.testing.assert_allclose(pipe.predict(X), expected, rtol=1e-5)


def test_skips_between_them():
    def model(marked):
        np.random.seed(1)
        layers = [L.Linear(4, 3), lambda x: [x, None], stash("a"), lambda xs: xs[0]]
        layers += [F.tanh, pop("a", lambda x, xs: x + xs[0])]
        result = Divisible()
        for position, layer in enumerate(layers):
            result.append(layer, recompute=position in marked)
        return result

    whole = model(())
    loss = F.softmax_cross_entropy(whole(X), T)
    whole.cleargrads()
    loss.backward()
    part = model((3, 4))
    with Pipeline(part.divide(), MPI.COMM_SELF, n_microbatches=2) as pipe:
        assert pipe.step(X, T)["loss"] == pytest.approx(float(loss.array))
    np.testing.assert_allclose(part[0].W.grad, whole[0].W.grad, rtol=1e-5, atol=1e-6)


def test_other_things_are_refused_by_the_layer():
    pipe = Pipeline(
        model_of(lambda x: {1}, lambda x: x, (2,)).divide(),
        MPI.COMM_SELF,
        n_microbatches=2,
    )
    with pytest.raises(RuntimeError, match="in layer 1, .* not set: mark both"):
        pipe.step(X, T)


def test_an_empty_tuple_at_the_end_is_the_layers_fault():
    model = model_of(lambda x: x, lambda x: x, ())
    model.append(lambda x: ())
    pipe = Pipeline(model.divide(), MPI.COMM_SELF, n_microbatches=2)
    with pytest.raises(RuntimeError, match="in layer 4, .* returned an empty tuple"):
        pipe.step(X, T)
