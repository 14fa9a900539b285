"""Layers that skip blocks, as functions of Chainer's."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_kernels.block_rows import LINEAR, BlockRows
from chainer_kernels.catalogue import backward_of, weights_of
from chainer_kernels.contributions import Rows, Scratch
from chainer_kernels.functions.block_products import BlockLayer, BlockProduct
from chainer_kernels.geometry import Geometry
from divisible.planning.retained_arrays import BufferSet, retained_arrays
from tests.support import kernels

STRIDED = Geometry((3, 3), (2, 1), (1, 1), (1, 1))
#: Geometries, and shapes of x and W.
CASES = [
    (LINEAR, (5, 24), (16, 24)),
    (STRIDED, (2, 16, 5, 4), (8, 16, 3, 3)),
]


def layer_of(geometry, shape):
    random = np.random.default_rng(3)
    live = random.random((shape[0] // 8, shape[1] // 8, np.prod(shape[2:], dtype=int)))
    return BlockLayer(BlockRows(live < 0.6), geometry, shape)


def zeros_of(layer):
    live = layer.rows.live.repeat(8, axis=0).repeat(8, axis=1)
    return live.reshape(layer.shape)


def dense(layer):
    """The same with all weights, of which some are zero."""

    def function(x, W, b=None):
        W = W * zeros_of(layer).astype(np.float32)
        if layer.geometry is LINEAR:
            return F.linear(x, W, b)
        return F.convolution_2d(x, W, b, (2, 1), (1, 1))

    return function


def inputs(case):
    geometry, x, W = case
    return layer_of(geometry, W), [
        kernels.arrays(shape, seed) for seed, shape in enumerate((x, W, W[:1]))
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [2, 3])
def test_forward_and_backward_are_those_of_masked_weights(case, n):
    layer, arrays = inputs(case)
    (y,), found = kernels.run(
        lambda *variables: BlockProduct(layer).apply(variables)[0], arrays[:n]
    )
    (expected,), gradients = kernels.run(dense(layer), arrays[:n])
    np.testing.assert_allclose(y, expected, 1e-4, 1e-5)
    for one, other in zip(found, gradients, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)
    # Exactly zero, not nearly.
    assert not found[1][~zeros_of(layer)].any()


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients(case):
    layer, arrays = inputs(case)

    def second(function):
        x, W = (chainer.Variable(each) for each in arrays[:2])
        y = F.sum(function(x, W) ** 3)
        first = chainer.grad([y], [x, W], enable_double_backprop=True)
        loss = F.sum(first[0] ** 2) + F.sum(first[1] ** 3)
        return [each.array for each in chainer.grad([loss], [x, W])]

    found = second(lambda x, W: BlockProduct(layer).apply((x, W))[0])
    for one, other in zip(found, second(dense(layer)), strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-3 * np.abs(other).max())


@pytest.mark.parametrize("case", CASES)
def test_contributions_write_and_add_what_backward_returns(case):
    layer, arrays = inputs(case)
    x, *parameters = arrays
    parameters = [chainer.Parameter(each) for each in parameters]
    (y,) = BlockProduct(layer).apply((x, *parameters))
    y.grad = kernels.arrays(y.shape, 7)
    assert backward_of(BlockProduct).is_splittable
    by_number = dict(enumerate(parameters, 1))
    shares = weights_of(BlockProduct)(y.creator, by_number, y.grad)
    y.backward()
    for i, parameter in by_number.items():
        out = np.full(parameter.shape, np.nan, "f")
        shares[i].write(out)
        np.testing.assert_array_equal(out, parameter.grad)
        shares[i].add(out, Scratch())
        np.testing.assert_array_equal(out, 2 * parameter.grad)


def test_contributions_of_microbatches_are_joined():
    layer, (x, W, _) = inputs(CASES[0])
    parameter = chainer.Parameter(W)
    shares, gradients = [], 0
    for seed in range(2):
        (y,) = BlockProduct(layer).apply((x * (seed + 1), parameter))
        y.grad = kernels.arrays(y.shape, seed)
        found = weights_of(BlockProduct)(y.creator, {1: parameter}, y.grad)
        shares.append(found[1])
        parameter.cleargrad()
        y.backward()
        gradients = gradients + parameter.grad
    out = np.empty_like(W)
    shares[0].joined(shares[1:], Rows()).write(out)
    np.testing.assert_allclose(out, gradients, 1e-4, 1e-5)
    other = shares[0]._replace(layer=layer_of(LINEAR, (24, 24)))
    assert shares[0].joined([other], Rows()) is None


@pytest.mark.parametrize("case", CASES)
def test_packed_weights(case):
    layer, (x, W, _) = inputs(case)
    packed = layer._replace(is_packed=True)
    tiles = layer.rows.tiles_of(W)
    one, found = kernels.run(lambda x, W: BlockProduct(layer).apply((x, W))[0], [x, W])
    other, packed_found = kernels.run(
        lambda x, W: BlockProduct(packed).apply((x, W))[0], [x, tiles]
    )
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[0], packed_found[0])
    np.testing.assert_array_equal(found[1], layer.whole(packed_found[1]))


@pytest.mark.parametrize("case", CASES)
def test_only_the_inputs_wait_for_the_backward(case):
    layer, (x, W, _) = inputs(case)
    (y,) = BlockProduct(layer).apply((chainer.Variable(x), chainer.Parameter(W)))
    assert not BufferSet(retained_arrays([y])) - BufferSet([x, W])
