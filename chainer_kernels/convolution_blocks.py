"""Windows of a convolution, in blocks that read alike.

Positions of an output whose windows lie wholly within the input use all taps of the
kernel, those at an edge some of them. A block is a set of positions that use the same
ones, so there are no zeros to be copied or multiplied:

::

    3 x 3, pad 1, an output of 4 x 4      taps used
    a b b c                               a  2 x 2   b  2 x 3   c  2 x 2
    d e e f                               d  3 x 2   e  3 x 3   f  3 x 2
    d e e f
    g h h i                               g  2 x 2   h  2 x 3   i  2 x 2

The gradient of the input is a convolution too, of the gradient of the output. With a
stride there is one for each remainder of a position by the stride, as only every so
many taps reach it; again the taps are the same for all of a block. Here stride 2, one
axis, 3 taps, no pad:

::

    x   0   1   2   3   4        even positions   taps 2, 0 (of y 0, 1 for x 2)
    y   0---0---0                odd positions    tap 1
                1---1---1

Where there are too few samples for matrices of a good size, the input is padded instead
and is one block, or one for each remainder.

Positions count pixels in the order of memory; an axis is a spatial one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from chainer_kernels.geometry import Geometry

#: The cost of a product of matrices besides its multiplications: of what BLAS copies,
#: in rows, and of the calls, in multiplications.
_ROWS, _MULTIPLICATIONS = 32, 1 << 20


class _Lattice(NamedTuple):
    """Evenly spaced outputs of one axis, and the evenly spaced inputs that they read.

    Attributes:
        start: The first output.
        step: The distance of outputs.
        count: How many outputs.
        tap: The first of the taps, in the order of the plan.
        n_taps: How many taps.
        first: Input that the first output reads at the first tap; it may be outside.
        stride: The distance of the inputs that neighbouring outputs read.
        dilation: The distance of the inputs that neighbouring taps read.
    """

    start: int
    step: int
    count: int
    tap: int
    n_taps: int
    first: int
    stride: int
    dilation: int

    @property
    def last(self) -> int:
        """The position that the last output reads at the last tap, perhaps outside."""
        outputs = (self.count - 1) * self.stride
        return self.first + outputs + (self.n_taps - 1) * self.dilation


class Block(NamedTuple):
    """Positions of an output that use the same taps.

    Attributes:
        outputs: Where they are in the output.
        inputs: Position in the input that each output reads at its first tap.
        taps: Distance of each tap's input from that of the first tap.
        runs: Such distances of the first tap of each run. A run is a group of taps that
            read consecutive positions.
        n_adjacent: Number of taps in each run.
        order: Indices of the taps, in the order of the plan.
        pieces: Ranges (start, end) of the same indices.
    """

    outputs: np.ndarray
    inputs: np.ndarray
    taps: np.ndarray
    runs: np.ndarray
    n_adjacent: int
    order: np.ndarray
    pieces: list[tuple[int, int]]


class BlockPlan(NamedTuple):
    """The blocks of a convolution.

    Attributes:
        blocks: They overlap nowhere.
        pads: Zeros to put before and behind each axis of the input first.
        order: The taps of the kernel, flattened, in the order of the blocks.
        is_complete: Whether every output is in a block; others have no taps at all.
    """

    blocks: list[Block]
    pads: tuple[tuple[int, int], ...]
    order: np.ndarray
    is_complete: bool

    def padded(self, x: np.ndarray) -> np.ndarray:
        """Returns (N, *sizes, C) with the zeros that the blocks count on."""
        if not any(map(any, self.pads)):
            return x
        sizes = [n + sum(pad) for n, pad in zip(x.shape[1:], self.pads)]
        y = np.zeros((len(x), *sizes, x.shape[-1]), x.dtype)
        inside = [slice(pad[0], pad[0] + n) for n, pad in zip(x.shape[1:], self.pads)]
        y[(slice(None), *inside)] = x
        return y


@functools.lru_cache(maxsize=128)
def of_outputs(
    geometry: Geometry, batch: int, weights: int, sizes: tuple[int, ...]
) -> BlockPlan:
    """Returns what each output of a convolution reads.

    Args:
        geometry: The convolution.
        batch: The number of samples.
        weights: How many weights a tap has in each group.
        sizes: The spatial sizes of its input.
    """
    outputs = geometry.output_sizes(sizes)
    axes = [
        ([_Lattice(0, 1, n, 0, k, -p, s, d)], range(k))
        for n, k, s, p, d in zip(outputs, *geometry[:4])
    ]
    return _plan(axes, batch, weights, sizes, outputs)


@functools.lru_cache(maxsize=128)
def of_inputs(
    geometry: Geometry,
    batch: int,
    weights: int,
    sizes: tuple[int, ...],
    outputs: tuple[int, ...],
) -> BlockPlan:
    """Returns which outputs of a convolution read each of its inputs.

    Args:
        geometry: The convolution.
        batch: The number of samples.
        weights: How many weights a tap has in each group.
        sizes: The spatial sizes of its input.
        outputs: The spatial sizes of its output.
    """
    axes = [_readers(*axis) for axis in zip(sizes, *geometry[:4])]
    return _plan(axes, batch, weights, outputs, sizes)


def _readers(
    size: int, kernel: int, stride: int, pad: int, dilation: int
) -> tuple[list[_Lattice], list[int]]:
    """Returns the outputs that read the inputs of an axis, and the order of taps."""
    lattices: list[_Lattice] = []
    order: list[int] = []
    divisor = math.gcd(stride, dilation)
    for start in range(stride):
        # Output i reads i * stride + tap * dilation - pad.
        taps = [t for t in range(kernel) if not (start + pad - t * dilation) % stride]
        count = len(range(start, size, stride))
        if taps and count:
            first = (start + pad - taps[-1] * dilation) // stride
            lattices.append(
                _Lattice(
                    start,
                    stride,
                    count,
                    len(order),
                    len(taps),
                    first,
                    1,
                    dilation // divisor,
                )
            )
        order += reversed(taps)
    return lattices, order


def _plan(
    axes: Sequence[tuple[list[_Lattice], Sequence[int]]],
    batch: int,
    weights: int,
    sizes: Sequence[int],
    outputs: Sequence[int],
) -> BlockPlan:
    lattices = [lattices for lattices, _ in axes]
    kernel = [len(order) for _, order in axes]
    split = [
        [part for lattice in axis for part in _within(lattice, size)]
        for axis, size in zip(lattices, sizes)
    ]
    pads = tuple(_pads(axis, size) for axis, size in zip(lattices, sizes))
    shifted = [
        [lattice._replace(first=lattice.first + pad[0]) for lattice in axis]
        for axis, pad in zip(lattices, pads)
    ]
    padded_sizes = [size + sum(pad) for size, pad in zip(sizes, pads)]
    if _cost(split, batch, weights) <= _cost(shifted, batch, weights):
        chosen, pads, padded_sizes = split, tuple((0, 0) for _ in sizes), sizes
    else:
        chosen = shifted
    blocks = [
        _block(parts, padded_sizes, outputs, kernel)
        for parts in itertools.product(*chosen)
    ]
    return BlockPlan(
        blocks,
        pads,
        _sums([np.array(order, np.int64) for _, order in axes], kernel),
        sum(len(block.outputs) for block in blocks) == math.prod(outputs),
    )


def _within(lattice: _Lattice, size: int) -> Iterator[_Lattice]:
    """Cuts a lattice into those of which all taps read what is inside an axis."""
    base = lattice.first + lattice.stride * np.arange(lattice.count)
    low = np.clip(-(base // lattice.dilation), 0, lattice.n_taps)
    high = np.clip((size - 1 - base) // lattice.dilation + 1, 0, lattice.n_taps)
    changes = np.flatnonzero(np.diff(low) | np.diff(high)) + 1
    ends = [0, *changes.tolist(), lattice.count]
    for i, j in zip(ends, ends[1:]):
        n_taps = int(high[i] - low[i])
        if n_taps > 0:
            yield lattice._replace(
                start=lattice.start + i * lattice.step,
                count=j - i,
                tap=lattice.tap + int(low[i]),
                n_taps=n_taps,
                first=int(base[i] + low[i] * lattice.dilation),
            )


def _pads(lattices: Sequence[_Lattice], size: int) -> tuple[int, int]:
    """Returns how many zeros are read before and behind an axis."""
    before = max([0, *(-lattice.first for lattice in lattices)])
    behind = max([0, *(lattice.last - size + 1 for lattice in lattices)])
    return before, behind


def _cost(axes: Sequence[Sequence[_Lattice]], batch: int, weights: int) -> int:
    """Returns the work of the products of all blocks, in rows of one tap."""
    return sum(
        (batch * math.prod(part.count for part in parts) + _ROWS)
        * math.prod(part.n_taps for part in parts)
        + _MULTIPLICATIONS // weights
        for parts in itertools.product(*axes)
    )


def _block(
    parts: Sequence[_Lattice],
    sizes: Sequence[int],
    outputs: Sequence[int],
    kernel: Sequence[int],
) -> Block:
    taps = _sums([part.tap + np.arange(part.n_taps) for part in parts], kernel)
    ends = [0, *(np.flatnonzero(np.diff(taps) != 1) + 1).tolist(), len(taps)]
    starts = [taps[i] for i in ends[:-1]]
    n_adjacent = parts[-1].n_taps if parts[-1].dilation == 1 else 1
    read = _sums([part.dilation * np.arange(part.n_taps) for part in parts], sizes)
    return Block(
        _sums([p.start + p.step * np.arange(p.count) for p in parts], outputs),
        _sums([p.first + p.stride * np.arange(p.count) for p in parts], sizes),
        read,
        np.ascontiguousarray(read[::n_adjacent]),
        n_adjacent,
        taps,
        [(int(t), int(t) + j - i) for t, i, j in zip(starts, ends, ends[1:])],
    )


def _sums(indexes: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Returns positions in memory of all combinations of indexes of the axes."""
    positions = np.zeros(1, np.int64)
    for index, size in zip(indexes, sizes):
        positions = (positions[:, None] * size + index).reshape(-1)
    return positions
