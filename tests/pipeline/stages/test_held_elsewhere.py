"""Microbatches that are elsewhere between forward and backward."""

import gc
import tracemalloc
from pathlib import Path

import chainer
import chainer.functions as F
import chainer.links as L
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import chainer_kernels
from divisible import Divisible
from divisible.backward.graph_functions import functions_behind
from pipeline import Pipeline

RNG = np.random.RandomState(0)
X = RNG.normal(size=(33, 3, 12, 12)).astype(np.float32)
T = RNG.randint(0, 10, 33).astype(np.int32)


class Squared(chainer.Function):
    """An old-style function with an array of its own."""

    def forward(self, inputs):
        (x,) = inputs
        self.twice = 2 * x
        return (x * x,)

    def backward(self, inputs, gradients):
        return (gradients[0] * self.twice,)


def halves(x):
    a, b = F.split_axis(x, 2, axis=1)
    return a * b, a[:, ::-1] * F.transpose(b)[:, : len(b)].T


def model(recomputed=()):
    np.random.seed(0)
    layers = [
        L.Convolution2D(3, 16, 3, pad=1),
        L.BatchNormalization(16),
        F.relu,
        lambda x: F.max_pooling_2d(x, 2),
        lambda x: F.dropout(x, 0.3),
        L.Linear(576, 512),
        halves,
        lambda a, b: F.concat([a, F.tanh(b)]),
        lambda x: Squared()(x),
        L.Linear(512, 10),
    ]
    result = Divisible()
    for position, layer in enumerate(layers):
        result.append(layer, recompute=position in recomputed)
    return result


def trained(recomputed=(), **arguments):
    layers = model(recomputed)
    optimizer = chainer.optimizers.MomentumSGD(0.01).setup(layers)
    results = []
    with Pipeline(
        layers.divide(), MPI.COMM_SELF, n_microbatches=6, **arguments
    ) as pipe:
        # The last minibatch is smaller, and one microbatch of it is empty.
        for n in (33, 33, 5):
            results.append(pipe.step(X[:n], T[:n]))
            optimizer.update()
        results.append(pipe.evaluate(X, T))
        predicted = pipe.predict(X)
    return results, predicted, {k: p.array for k, p in layers.namedparams()}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    "recompute, recomputed",
    [("never", ()), ("always", ()), ("never", (1, 2, 6, 7)), ("except_last", (5, 6))],
)
def test_the_result_is_the_same_bit_for_bit(schedule, recompute, recomputed, tmp_path):
    arguments = {"schedule": schedule, "recompute": recompute}
    results, predicted, params = trained(recomputed, **arguments)
    found, outputs, others = trained(recomputed, **arguments, hold_in=tmp_path)
    assert found == results
    np.testing.assert_array_equal(outputs, predicted)
    for path, array in params.items():
        np.testing.assert_array_equal(others[path], array, err_msg=path)


def test_what_waits_is_rounded_and_nothing_else():
    """Against plain Chainer, with the same arrays rounded by hand."""

    class Net(Divisible):
        def __init__(self):
            super().__init__(
                *(L.Linear(3 * 144, 512), F.tanh, L.Linear(512, 512), F.sigmoid),
                *(lambda h: h * F.exp(-h), L.Linear(512, 10)),
            )

    def rounded(array):
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)

    def serial(rounds):
        np.random.seed(0)
        layers = Net()
        layers.cleargrads()
        # A last bit may decide to which of two neighbours a number is rounded, so
        # products are those of a pipeline.
        with chainer_kernels.unchanged_weights(n_uses=3):
            for start in range(0, len(X), 11):
                x, t = X[start : start + 11].reshape(11, -1), T[start : start + 11]
                x = chainer.Variable(x)
                loss = F.softmax_cross_entropy(layers(x), t) / 3
                if rounds:
                    round_graph(loss, x, layers)
                loss.backward()
        return {k: p.grad for k, p in layers.namedparams()}

    def round_graph(loss, x, layers):
        stay = {id(p.node) for p in layers.params()} | {id(x.node)}
        for function in functions_behind([loss]):
            for node in function.inputs:
                if id(node) not in stay and node.data is not None:
                    stay.add(id(node))
                    if node.data.nbytes >= 16384:
                        node.data = rounded(node.data)
            retained = function._retained_output_data
            if retained is not None:
                function._retained_output_data = tuple(
                    a if a is None or a.nbytes < 16384 else rounded(a) for a in retained
                )

    def pipelined(**arguments):
        np.random.seed(0)
        layers = Net()
        with Pipeline(
            *(layers.divide(), MPI.COMM_SELF),
            **dict(n_microbatches=3, schedule="gpipe", **arguments),
        ) as pipe:
            pipe.step(X.reshape(33, -1), T)
        return {k: p.grad for k, p in layers.namedparams()}

    exact, expected = serial(False), serial(True)
    for arguments in ({}, {"hold_in": "disk"}, {"weight_groups": 3}):
        found = pipelined(hold_dtype="bfloat16", **arguments)
        for path, gradient in found.items():
            scale = np.abs(exact[path]).max()
            error = np.abs(gradient - expected[path]).max()
            assert error < 1e-5 * scale, (path, arguments)
            if path != "/5/b":
                assert np.abs(gradient - exact[path]).max() > 1e-4 * scale, path


def peak_of_a_step(**arguments):
    np.random.seed(0)
    layers = Divisible(*(f for _ in range(8) for f in (L.Linear(64, 64), F.tanh)))
    x, t = np.ones((8192, 64), np.float32), np.zeros(8192, np.int32)
    with Pipeline(
        layers.divide(), MPI.COMM_SELF, n_microbatches=8, schedule="gpipe", **arguments
    ) as pipe:
        pipe.step(x, t)
        gc.collect()
        tracemalloc.start()
        try:
            pipe.step(x, t)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_the_memory_is_free_meanwhile():
    # Of eight microbatches one is computed while another one is read or written.
    whole = peak_of_a_step()
    assert peak_of_a_step(hold_in="disk") < 0.5 * whole
    # Of eight microbatches seven take half, but for one of nine arrays: probabilities.
    held = 7 / 16 * 10 / 9
    assert peak_of_a_step(hold_dtype="bfloat16") < (held + 1 / 8 + 0.06) * whole


def test_a_backward_that_follows_at_once_rounds_nothing():
    exact = trained(schedule="1f1b")
    found = trained(schedule="1f1b", hold_dtype="bfloat16")
    assert found[0] == exact[0]
    for path, array in exact[2].items():
        np.testing.assert_array_equal(found[2][path], array)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"hold_in": "host"}, "a GPU's activations"),
        ({"hold_in": "tape"}, "'memory', 'disk' or a directory, not 'tape'"),
        ({"hold_in": 3}, "'memory', 'disk' or a directory, not 3"),
        ({"hold_dtype": "float16"}, "'float32' or 'bfloat16', not 'float16'"),
        ({"hold_dtype": np.float32}, "'float32' or 'bfloat16', not"),
        ({"hold_in": "/absent"}, "no file can be made in '/absent'"),
        ({"hold_in": Path("absent")}, "no file can be made in 'absent'"),
    ],
)
def test_places_that_are_none_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Pipeline(model().divide(), MPI.COMM_SELF, n_microbatches=2, **arguments)
