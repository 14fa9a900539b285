"""Batch normalizations folded into the layers before them."""

from unittest import mock

import chainer
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_kernels.fusion import folding
from tests.support import kernels
from tests.support.folding import (
    assert_close,
    convolution,
    fill,
    normalization,
    nothing_trains,
    unfolded,
)
from tests.support.fusion import assert_same_bits

X = kernels.arrays((4, 3, 9, 8), 0)


def folded(layers, x):
    """Returns the output of two layers as one; ``None`` if they are not folded."""
    assert folding.are_pair(*layers)
    with nothing_trains():
        y = folding.folded(*layers, x)
    return None if y is None else y.array


def test_it_is_the_product_and_the_normalization():
    random = np.random.RandomState(0)
    W, b, gamma, beta, mean = (random.randn(*s) for s in ((5, 7), *[(5,)] * 4))
    var = random.uniform(0.1, 2, 5)
    x = random.randn(3, 7)
    y = (x @ W.T + b - mean) / np.sqrt(var + 0.01) * gamma + beta
    W, b = folding.fold(W, b, gamma, beta, mean, var, 0.01)
    np.testing.assert_allclose(x @ W.T + b, y, rtol=1e-12)


def test_what_is_folded_keeps_its_memory_order_and_dtype():
    W = kernels.arrays((4, 3, 5, 5), 0, "channels last")
    ones = np.ones(4, "f")
    found, b = folding.fold(W, None, None, None, ones, ones, 1e-5)
    assert found.strides == W.strides
    assert found.dtype == b.dtype == np.float32


@given(
    n_dims=st.integers(0, 3),
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    ksize=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 2),
    dilate=st.integers(1, 2),
    nobias=st.booleans(),
    use_gamma=st.booleans(),
    use_beta=st.booleans(),
    eps=st.sampled_from([1e-7, 2e-5, 0.1]),
    batch=st.integers(1, 40),
    order=kernels.orders,
    seed=kernels.seeds,
)
def test_values_are_those_of_the_layers(
    n_dims,
    groups,
    channels,
    ksize,
    stride,
    pad,
    dilate,
    nobias,
    use_gamma,
    use_beta,
    eps,
    batch,
    order,
    seed,
):
    np.random.seed(seed)
    n_in, n_out = (n * groups for n in channels)
    options = {"nobias": nobias, "initial_bias": chainer.initializers.Normal(1)}
    if n_dims == 0:
        layer = L.Linear(n_in, n_out, **options)
    else:
        options |= {"groups": groups, "dilate": dilate}
        kind = L.Convolution2D if n_dims == 2 else L.ConvolutionND
        which = () if n_dims == 2 else (n_dims,)
        layer = kind(*which, n_in, n_out, ksize, stride, pad, **options)
    norm = fill(
        L.BatchNormalization(n_out, eps=eps, use_gamma=use_gamma, use_beta=use_beta),
        seed,
    )
    x = kernels.arrays((batch, n_in, *[7] * n_dims), seed, order)
    expected = unfolded([layer, norm], x)
    found = folded([layer, norm], x)
    assert (found is not None) == (expected.size >= 2 * layer.W.size)
    if found is not None:
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (L.Convolution1D(3, 4, 3), (5, 3, 9)),
        (L.Convolution3D(3, 4, 2), (5, 3, 4, 5, 6)),
        (L.ConvolutionND(2, 3, 4, 3, stride=2, cover_all=True), (5, 3, 8, 9)),
        (L.Convolution2D(3, 4, (3, 1), stride=(1, 2), pad=(0, 1)), (5, 3, 8, 9)),
        (L.Linear(12, 4), (30, 3, 2, 2)),
    ],
)
def test_other_links_and_options(layer, shape):
    layers, x = [layer, normalization(4)], kernels.arrays(shape, 0)
    assert_close(folded(layers, x), unfolded(layers, x))


@pytest.mark.parametrize("axis", [None, (0, 2, 3)])
def test_axes_of_the_normalization(axis):
    norm = L.BatchNormalization(8, axis=axis)
    layers = [convolution(), fill(norm)]
    assert_close(folded(layers, X), unfolded(layers, X))


class OwnParameter(chainer.Parameter):
    """A parameter that fetches its array, as a streamed one does."""


def with_own_parameter():
    layer = convolution()
    layer.W = OwnParameter(layer.W.array)
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        [with_own_parameter(), normalization(8)],
        [convolution(), L.BatchNormalization(axis=(0, 2, 3))],
        [convolution(), L.BatchNormalization((8, 9, 8))],
        [convolution(), fill(L.BatchNormalization(8, axis=(0, 1, 3)))],
        [convolution(), fill(L.BatchNormalization(4))],
        [convolution(), L.BatchNormalization(8, dtype="d")],
        [L.Convolution2D(None, 8, 3), normalization(8)],
        # 1728 weights, and 8 outputs of each of 4 samples.
        [L.Linear(216, 8), normalization(8)],
    ],
)
def test_others_are_not_folded(layers):
    assert folded(layers, X) is None


@pytest.mark.parametrize("x", [X.astype("d"), X[0], X[:0], np.ones(3, "f"), None])
def test_an_input_that_does_not_fit_is_left_to_the_layer(x):
    assert folded([convolution(), normalization(8)], x) is None


def test_a_vector_is_left_to_the_layer():
    assert folded([L.Linear(3, 8), normalization(8)], np.ones(3, "f")) is None


def test_an_input_of_other_channels_is_refused_as_ever():
    layers, errors = [convolution(), normalization(8)], []
    for call in (folded, unfolded):
        with pytest.raises(chainer.utils.type_check.InvalidType) as error:
            call(layers, X[:, :2])
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_the_links_stay_as_they_are():
    layer, norm = convolution(), normalization(8)
    W, attributes = layer.W.array.copy(), dict(vars(layer))
    assert folded([layer, norm], X) is not None
    assert_same_bits([layer.W.array], [W])
    assert vars(layer) == attributes


CHANGES = {
    "weights": lambda layer, norm: np.multiply(layer.W.array, 2, out=layer.W.array),
    "another array": lambda layer, norm: setattr(layer.W, "array", layer.W.array * 2),
    "bias": lambda layer, norm: layer.b.array.fill(7),
    "gamma": lambda layer, norm: norm.gamma.array.fill(3),
    "beta": lambda layer, norm: norm.beta.array.fill(3),
    "averages": lambda layer, norm: (norm.avg_mean.fill(2), norm.avg_var.fill(3)),
    "eps": lambda layer, norm: setattr(norm, "eps", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_folded_is_never_old(change):
    layers = [convolution(), normalization(8)]
    with nothing_trains(), folding.folded_once():
        before = folding.folded(*layers, X).array
    CHANGES[change](*layers)
    expected = unfolded(layers, X)
    assert not np.allclose(before, expected, rtol=1e-3)
    assert_close(folded(layers, X), expected)
    with folding.folded_once():
        assert_close(folded(layers, X), expected)


def test_a_call_folds_once_and_each_pair_for_itself():
    first, second, norm = convolution(), convolution(), normalization(8)
    other = fill(L.BatchNormalization(8), 1)
    pairs = [first, norm], [second, norm], [first, other]
    with mock.patch.object(folding, "fold", wraps=folding.fold) as counted:
        for _ in range(2):
            with folding.folded_once():
                for _ in range(3):
                    for pair in pairs:
                        assert_close(folded(pair, X), unfolded(pair, X))
        assert counted.call_count == 2 * 3
        folded([first, norm], X)
        folded([first, norm], X)
        assert counted.call_count == 2 * 3 + 2


def test_blocks_lie_within_each_other():
    layers = [convolution(), normalization(8)]
    with folding.folded_once():
        folded(layers, X)
        layers[0].W.array[...] *= 2
        with folding.folded_once():
            assert_close(folded(layers, X), unfolded(layers, X))
