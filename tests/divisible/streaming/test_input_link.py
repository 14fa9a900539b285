"""Layers with a streamed input compute what others do, in bounded memory."""

import tracemalloc

import chainer
import chainer.functions as F
import chainer.links as L
import h5py
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from divisible.streaming import LargeInput, StoreError, StreamedInput
from pipeline import Pipeline

RANDOM = np.random.RandomState(0)
N = 23
CASES = {
    "linear": (lambda: L.Linear(12, 7), RANDOM.randn(N, 3, 4).astype("f")),
    "convolution": (
        lambda: L.Convolution2D(2, 5, 3, stride=2, pad=1),
        RANDOM.randn(N, 2, 6, 7).astype("f"),
    ),
    "embedding": (
        lambda: L.EmbedID(9, 5, ignore_label=-1),
        RANDOM.randint(-1, 9, (N, 4)).astype("i"),
    ),
}


def sources(x, tmp_path):
    """The same rows, as each kind of source."""
    mapped = np.memmap(tmp_path / "rows", x.dtype, "w+", shape=x.shape)
    mapped[...] = x
    file = h5py.File(tmp_path / "rows.h5", "w")
    file["x"] = x

    def pieces():
        for start in range(0, len(x), 4):
            yield x[start : start + 4]

    yield mapped
    yield LargeInput(file["x"])
    yield LargeInput(pieces, shape=x.shape, dtype=x.dtype)


def results(link, x):
    """Returns the output of a call and the gradients of the parameters."""
    y = link(x)
    gradients = np.random.RandomState(1).randn(*y.shape).astype("f")
    y.grad = gradients
    link.cleargrads()
    y.backward()
    return [y.array, *(param.grad for _, param in sorted(link.namedparams()))]


@pytest.mark.parametrize("segment", [5, 100, "auto"])
@pytest.mark.parametrize("name", CASES)
def test_same_numbers_from_every_source(name, segment, tmp_path):
    make, x = CASES[name]
    activations = [None] if name == "embedding" else [None, F.relu, F.tanh]
    for activation in activations:
        np.random.seed(0)
        plain = make()
        layer = StreamedInput(plain, activation=activation, segment=segment)

        whole = chainer.Sequential(plain, *([activation] if activation else []))
        expected = [array.copy() for array in results(whole, x)]
        for source in sources(x, tmp_path):
            for found, wanted in zip(results(layer, source), expected):
                np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
        if name == "embedding":
            found = layer(LargeInput(x)).array
            np.testing.assert_array_equal(found, expected[0])


def test_memory_does_not_grow_with_the_input(tmp_path):
    row, n_rows = 4000, 50
    layer = StreamedInput(L.Linear(row, 3), activation=F.relu, segment=n_rows)
    segment, peaks = n_rows * row * 4, []
    layer.cleargrads()
    # The first pass also makes what is made but once.
    for n in (400, 400, 4000):
        x = np.memmap(tmp_path / str(n), "f", "w+", shape=(n, row))
        tracemalloc.start()
        results(layer, x)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    _, small, large = peaks
    # Two segments, the gradient of W twice, and the outputs with their gradients.
    assert segment < small < 2.3 * segment and large < 2.3 * segment
    assert large - small < segment / 2 < 4000 * row * 4 / 50


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_the_first_layer_of_a_pipeline_reads_a_mapped_file(schedule, tmp_path):
    x = np.memmap(tmp_path / "x", "f", "w+", shape=(24, 5000))
    x[...] = np.random.RandomState(0).rand(*x.shape)
    t = np.arange(24, dtype=np.int32) % 3
    gradients = []
    for streams in (False, True):
        np.random.seed(0)
        first = L.Linear(5000, 6)
        layers = [first, F.relu]
        if streams:
            layers = [StreamedInput(first, activation=F.relu, segment=2), F.identity]
        model = Divisible(*layers, L.Linear(6, 3))
        pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=3, schedule=schedule)
        pipe.step(x, t)
        model.cleargrads()
        tracemalloc.start()
        pipe.step(x, t)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        gradients.append([param.grad for _, param in sorted(model.namedparams())])
        assert not streams or peak < x.nbytes
        pipe.close()
    for found, wanted in zip(*gradients):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_the_gradient_of_the_bias_alone_reads_no_input():
    rows = [CASES["linear"][1].reshape(N, -1)]
    large = LargeInput(lambda: [rows.pop()], shape=(N, 12), dtype="f")
    layer = StreamedInput(L.Linear(12, 7), segment=5)
    y = layer(large)
    (gb,) = chainer.grad([y], [layer.b], [chainer.Variable(np.ones_like(y.array))])
    np.testing.assert_allclose(gb.array, np.full(7, N))


def test_errors_of_the_source_end_the_call():
    def rows():
        raise OSError("the disk is gone")

    layer = StreamedInput(L.Linear(12, 7))
    with pytest.raises(StoreError, match="rows 0 to 22 .* OSError: the disk is gone"):
        layer(LargeInput(rows, shape=(N, 12), dtype="f"))
    lookup = StreamedInput(L.EmbedID(5, 3))
    with pytest.raises(ValueError, match="the id 7 has no row in an embedding of 5"):
        lookup(np.array([1, 7]))


def test_what_is_not_computed_is_refused():
    x = CASES["linear"][1]
    layer = StreamedInput(L.Linear(12, 7), segment=5)
    with pytest.raises(ValueError, match="a streamed input has no gradient"):
        layer(chainer.Variable(x))
    assert layer(chainer.Variable(x, requires_grad=False)).shape == (N, 7)
    words = r"\(23, 2, 4\) has 8 numbers for each sample, and the layer reads 12"
    with pytest.raises(ValueError, match=words):
        layer(x[:, :2])
    y = F.sum(layer(x))
    with pytest.raises(RuntimeError, match="no double backward"):
        chainer.grad([y], [layer.W], enable_double_backprop=True)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: StreamedInput(L.GRU(3, 3)), "expected L.Linear"),
        (lambda: StreamedInput(L.Linear(3)), "needs the sizes of its input"),
        (lambda: StreamedInput(L.EmbedID(3, 3), activation=F.relu), "has none"),
        (lambda: StreamedInput(L.Linear(3, 3), activation=F.exp), "is not one of"),
        (lambda: StreamedInput(L.Linear(3, 3), segment=0), "expected 1 row or more"),
        (lambda: StreamedInput(L.Linear(3, 3), timeout=0), "timeout must be positive"),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()
