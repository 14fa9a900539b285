"""Linear layers and convolutions that skip blocks of zeros, as functions of Chainer's.

::

    BlockProduct            x, W    -> y
    BlockProductGradData    gy, W   -> gx        W read at live tiles only
    BlockProductGradWeight  x, gy   -> gW        zero elsewhere

Each is the gradient of the others, so gradients of gradients are these functions too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np
from chainer import FunctionNode

from chainer_kernels.block_rows import LINEAR, BlockRows
from chainer_kernels.contributions import Contribution, Rows, Scratch
from chainer_kernels.functions.weight_gradients import Sum
from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import channels_first, channels_last

Array = np.ndarray
Arrays = tuple[Array, ...]
_Variables = Sequence[chainer.Variable]


class BlockLayer(NamedTuple):
    """A layer whose weights have blocks of zeros.

    Attributes:
        rows: The tiles that are not skipped.
        geometry: The geometry of a convolution; :data:`.LINEAR` for a linear layer.
        shape: The shape of the weights, (O, I) or (O, C, *kernel).
        is_packed: Whether W is given as tiles, and not in this shape.
    """

    rows: BlockRows
    geometry: Geometry
    shape: tuple[int, ...]
    is_packed: bool = False

    def tiles_of(self, W: Array) -> Array:
        """Returns the tiles of W, (tiles, inputs, outputs)."""
        return W if self.is_packed else self.rows.tiles_of(_contiguous(W))

    def forward(self, x: Array, tiles: Array) -> Array:
        """Returns the output for x of shape (N, I) or (N, C, *sizes)."""
        y = self.rows.forward(self._positions(x), tiles, self.geometry)
        return self._array(y)

    def data(self, gy: Array, tiles: Array, sizes: tuple[int, ...]) -> Array:
        """Returns the gradient of x, of these spatial sizes."""
        gy = self._positions(gy)
        gx = self.rows.data(gy, tiles, self.geometry, sizes or (1,))
        return self._array(gx)

    def weights(self, x: Array, gy: Array) -> Array:
        """Returns the gradient of the tiles, (tiles, inputs, outputs)."""
        x, gy = self._positions(x), self._positions(gy)
        return self.rows.weights(x, gy, self.geometry)

    def add_weights(self, x: Array, gy: Array, sums: Array) -> None:
        """Adds the gradient of the tiles to sums, flat."""
        x, gy = self._positions(x), self._positions(gy)
        self.rows.add_tiles(x, gy, self.geometry, sums)

    def whole(self, tiles: Array) -> Array:
        """Returns a gradient of W of which these are the tiles."""
        if self.is_packed:
            return tiles
        gW = np.empty(self.shape, np.float32)
        self.rows.write(tiles, gW)
        return gW

    @property
    def _is_linear(self) -> bool:
        return self.geometry is LINEAR

    def _positions(self, x: Array) -> Array:
        """Returns an array as (N, *sizes, channels), C contiguous."""
        if self._is_linear:
            return _contiguous(x).reshape(len(x), 1, -1)
        return channels_last(x)

    def _array(self, positions: Array) -> Array:
        if self._is_linear:
            return positions.reshape(len(positions), -1)
        return channels_first(positions)


def _contiguous(array: Array) -> Array:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


class BlockProduct(FunctionNode):
    """The output of a layer, of x, W and perhaps b.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: BlockLayer) -> None:
        self.layer = layer

    def forward_cpu(self, inputs: Arrays) -> Arrays:
        """Returns the output."""
        self.retain_inputs((0, 1))
        x, W, *b = inputs
        tiles = self.layer.tiles_of(W)
        y = self.layer.forward(x, tiles)
        for bias in b:
            y += bias.reshape(-1, *[1] * (y.ndim - 2))
        return (y,)

    def backward(self, indexes: Sequence[int], grad_outputs: _Variables) -> tuple:
        """Returns gradients of x, W and b, as functions of Chainer's."""
        x, W = self.get_retained_inputs()
        (gy,) = grad_outputs
        found = []
        if 0 in indexes:
            data = BlockProductGradData(self.layer, x.shape[2:])
            found.append(data.apply((gy, W))[0])
        if 1 in indexes:
            found.append(BlockProductGradWeight(self.layer).apply((x, gy))[0])
        if 2 in indexes:
            found.append(F.sum(gy, axis=_summed(gy)))
        return tuple(found)


class BlockProductGradData(FunctionNode):
    """The gradient of a layer's input, of gy and W.

    Args:
        layer: The layer.
        sizes: The spatial sizes of the input.
    """

    def __init__(self, layer: BlockLayer, sizes: tuple[int, ...]) -> None:
        self.layer, self._sizes = layer, sizes

    def forward_cpu(self, inputs: Arrays) -> Arrays:
        """Returns the gradient."""
        self.retain_inputs((0, 1))
        gy, W = inputs
        tiles = self.layer.tiles_of(W)
        return (self.layer.data(gy, tiles, self._sizes),)

    def backward(self, indexes: Sequence[int], grad_outputs: _Variables) -> tuple:
        """Returns gradients of gy and W."""
        gy, W = self.get_retained_inputs()
        (ggx,) = grad_outputs
        found = []
        if 0 in indexes:
            found.append(BlockProduct(self.layer).apply((ggx, W))[0])
        if 1 in indexes:
            found.append(BlockProductGradWeight(self.layer).apply((ggx, gy))[0])
        return tuple(found)


class BlockProductGradWeight(FunctionNode):
    """The gradient of a layer's weights, of x and gy; exactly zero where W is skipped.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: BlockLayer) -> None:
        self.layer = layer

    def forward_cpu(self, inputs: Arrays) -> Arrays:
        """Returns the gradient."""
        self.retain_inputs((0, 1))
        return (self.layer.whole(self.layer.weights(*inputs)),)

    def backward(self, indexes: Sequence[int], grad_outputs: _Variables) -> tuple:
        """Returns gradients of x and gy."""
        x, gy = self.get_retained_inputs()
        (ggW,) = grad_outputs
        found = []
        if 0 in indexes:
            data = BlockProductGradData(self.layer, x.shape[2:])
            found.append(data.apply((gy, ggW))[0])
        if 1 in indexes:
            found.append(BlockProduct(self.layer).apply((x, ggW))[0])
        return tuple(found)


class TileSums(NamedTuple):
    """The gradient of a layer's weights, whose microbatches are added up as tiles.

    Attributes:
        share: The gradient in the order of the weights.
    """

    share: BlockWeights

    def add(self, out: Array, is_first: bool) -> None:
        """Adds to the tiles at the beginning of an array, or overwrites them."""
        layer, x, gy = self.share
        sums = layer.rows.tiles_in(out)
        if is_first:
            sums.fill(0)
        layer.add_weights(x, gy, sums)

    @property
    def bring_in_order(self) -> Callable[[Array], None]:
        """A function that takes the tiles to their places, and writes zeros elsewhere.

        It is the same for all shares with the same tiles.
        """
        return self.share.layer.rows.bring_in_order


class BlockWeights(NamedTuple):
    """The gradient of a layer's weights, which is added at its tiles only.

    Attributes:
        layer: The layer.
        x: The input.
        gy: The gradient of the output.
    """

    layer: BlockLayer
    x: Array
    gy: Array

    @property
    def turned(self) -> TileSums:
        """The gradient as tiles, which are taken to their places but once."""
        return TileSums(self)

    def write(self, out: Array) -> None:
        """Overwrites an array."""
        self.layer.rows.write(self.layer.weights(self.x, self.gy), out)

    def add(self, out: Array, scratch: Scratch) -> None:
        """Adds to an array."""
        self.layer.rows.add(self.layer.weights(self.x, self.gy), out)

    def joined(self, others: Sequence[Contribution], rows: Rows) -> BlockWeights | None:
        """Returns the gradient for the samples of all microbatches, if they fit."""
        for other in others:
            if type(other) is not BlockWeights or other.layer != self.layer:
                return None
        every = [self, *others]
        x, gy = (rows.of([each[i] for each in every]) for i in (1, 2))
        return None if x is None or gy is None else self._replace(x=x, gy=gy)


def _summed(gy: Any) -> tuple[int, ...]:
    """Returns the axes over which the gradient of a bias is added up."""
    return (0, *range(2, gy.ndim))


def contributions(
    function: BlockProduct, parameters: Mapping[int, chainer.Parameter], gy: Array
) -> dict[int, Contribution]:
    """Returns contributions to the gradients of W and b; see the kernels' catalogue."""
    shares: dict[int, Contribution] = {}
    if 1 in parameters and not function.layer.is_packed:
        shares[1] = BlockWeights(function.layer, function.inputs[0].data, gy)
    if 2 in parameters:
        shares[2] = Sum(gy, _summed(gy))
    return shares
