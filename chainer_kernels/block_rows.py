"""Products and convolutions with weights of which blocks are zero, and are skipped.

Weights (O, C, taps) are cut into tiles of 8 outputs and 8 inputs at a tap. Tiles that
are not zero are stored behind one another, row of blocks by row of blocks::

    W     inputs 0-7  8-15  16-23  24-31        tiles    a b c d e
    outputs 0-7     a     .     b      .        inputs   0 2 1 0 3
    outputs 8-15    .     c     .      .        starts   0   2 3   5
    outputs 16-23   d     .     .      e

A linear layer is a convolution of one position here. The gradient of the input
multiplies the same tiles, turned. The gradient of the weights has the same tiles, and
no others. All results are those of dense products, up to the order of additions; an
input that is not finite reaches only outputs that read it.

Eight positions are multiplied at once (:mod:`.loops.tile_sums`). With AVX-512, a linear
layer and a convolution of 1 x 1 multiply 32 (:mod:`.loops.tile_panels`), with the same
bits.
"""

from __future__ import annotations

import functools
import math

import llvmlite.binding
import numpy as np

from chainer_kernels import convolution_blocks, kept_weights, threads
from chainer_kernels.convolution_blocks import BlockPlan
from chainer_kernels.geometry import Geometry
from chainer_kernels.loops import block_rows as loops
from chainer_kernels.loops import tile_panels as panel_loops
from chainer_kernels.loops.tile_panels import PANEL
from chainer_kernels.loops.tile_sums import SIDE
from chainer_kernels.tile_runs import Images, Run, Tiles, runs_of

#: A linear layer, as a convolution of one position.
LINEAR = Geometry((1,), (1,), (0,), (1,))

Shape = tuple[int, ...]


class BlockRows:
    """The tiles of a layer's weights that are not skipped.

    Args:
        live: Whether each tile is not zero, (O / 8, C / 8, taps).

    Attributes:
        live: Whether each tile is not zero.
        n_tiles: Number of tiles that are not skipped.

    Example:
        >>> rows = BlockRows(np.eye(2, dtype=bool)[:, :, None])
        >>> W = np.ones((16, 16), 'f')
        >>> y = rows.forward(np.ones((1, 1, 16), 'f'), rows.tiles_of(W), LINEAR)
        >>> y.shape, y[0, 0, 0].item()
        ((1, 1, 16), 8.0)
    """

    def __init__(self, live: np.ndarray) -> None:
        self.live = live
        outs, ins, taps = map(np.ascontiguousarray, np.nonzero(live))
        self.n_tiles = len(outs)
        self._by_outs = Tiles(outs, ins, taps)
        self._turned = np.lexsort((taps, outs, ins))
        self._by_ins = Tiles(*(each[self._turned] for each in (ins, outs, taps)))

    def tiles_of(self, W: np.ndarray) -> np.ndarray:
        """Returns the tiles of weights, (tiles, inputs, outputs), perhaps kept.

        Args:
            W: (O, C, *kernel), C contiguous.
        """

        def make() -> np.ndarray:
            tiles = self._empty()
            loops.gather(W.reshape(-1), *self._sizes, *self._by_outs, _flat(tiles))
            return tiles

        return kept_weights.kept(W, ("tiles", self), self._empty().nbytes, make)

    def _empty(self) -> np.ndarray:
        return np.empty((self.n_tiles, SIDE, SIDE), np.float32)

    def write(self, tiles: np.ndarray, W: np.ndarray) -> None:
        """Writes weights of which these are the tiles, and zeros elsewhere.

        Args:
            tiles: (tiles, inputs, outputs).
            W: (O, C, *kernel), C contiguous; written.
        """
        loops.spread(W.reshape(-1), *self._sizes, *self._by_outs, _flat(tiles))

    def add(self, tiles: np.ndarray, W: np.ndarray) -> None:
        """Adds tiles to their places in weights; see :meth:`write`."""
        loops.add(W.reshape(-1), *self._sizes, *self._by_outs, _flat(tiles))

    def forward(
        self, x: np.ndarray, tiles: np.ndarray, geometry: Geometry
    ) -> np.ndarray:
        """Returns the output of a convolution.

        Args:
            x: (N, *sizes, C), C contiguous.
            tiles: From :meth:`tiles_of`.
            geometry: The convolution's.
        """
        if _has_panels(x, geometry):
            return self._by_panels(x, tiles, is_turned=False)
        plan, runs = _of_outputs(self, geometry, len(x), x.shape[1:-1])
        sizes = geometry.output_sizes(x.shape[1:-1])
        y = _empty(plan, (len(x), *sizes, len(self.live) * SIDE))
        return _multiplied(plan.padded(x), runs, tiles, y)

    def data(
        self, gy: np.ndarray, tiles: np.ndarray, geometry: Geometry, sizes: Shape
    ) -> np.ndarray:
        """Returns the gradient of a convolution's input.

        Args:
            gy: (N, *sizes, O), C contiguous.
            tiles: From :meth:`tiles_of`.
            geometry: The convolution's.
            sizes: The spatial sizes of the input.
        """
        if _has_panels(gy, geometry):
            return self._by_panels(gy, tiles, is_turned=True)
        turned = self._empty()
        loops.turn(_flat(tiles), self._turned, _flat(turned))
        plan, runs = _of_inputs(self, geometry, len(gy), sizes, gy.shape[1:-1])
        gx = _empty(plan, (len(gy), *sizes, self.live.shape[1] * SIDE))
        return _multiplied(plan.padded(gy), runs, turned, gx)

    def weights(self, x: np.ndarray, gy: np.ndarray, geometry: Geometry) -> np.ndarray:
        """Returns the gradient of the tiles, (tiles, inputs, outputs).

        Args:
            x: (N, *sizes, C), C contiguous.
            gy: (N, *sizes, O), C contiguous.
            geometry: The convolution's.
        """
        sums = np.zeros((self.n_tiles, SIDE, SIDE), np.float32)
        self.add_tiles(x, gy, geometry, _flat(sums))
        return sums

    def tiles_in(self, W: np.ndarray) -> np.ndarray:
        """Returns the part of an array of weights that has room for all tiles, flat."""
        return W.reshape(-1)[: self.n_tiles * SIDE * SIDE]

    def bring_in_order(self, W: np.ndarray) -> None:
        """Writes weights of which the tiles are in :meth:`tiles_in` of the same array.

        Args:
            W: (O, C, *kernel), C contiguous; written.
        """
        self.write(self.tiles_in(W).copy(), W)

    def add_tiles(
        self, x: np.ndarray, gy: np.ndarray, geometry: Geometry, sums: np.ndarray
    ) -> None:
        """Adds the gradient of the tiles to sums, flat; see :meth:`weights`."""
        plan, runs = _of_outputs(self, geometry, len(x), x.shape[1:-1])
        x, gy = _by_eights(plan.padded(x)), _by_eights(gy)
        for run in runs:
            threads.run_ranges(
                loops.add_gradients,
                len(run.tiles),
                x,
                run.rows,
                run.offsets,
                gy,
                run.targets,
                run.columns,
                sums,
                run.tiles,
                size=len(run.rows) * SIDE,
            )

    def runs(
        self, plan: BlockPlan, images: tuple[int, int, int], is_turned: bool
    ) -> list[Run]:
        """Returns the positions of a convolution, and the tiles of each.

        Args:
            plan: The positions.
            images: Number of samples, positions of an image that is read, and of one
                that is written.
            is_turned: Whether gradients of outputs are read, and inputs written.
        """
        outs, ins, n_taps = self.live.shape
        sizes = Images(*images, (ins if is_turned else outs) * SIDE, n_taps)
        return runs_of(self._by_ins if is_turned else self._by_outs, plan, sizes)

    def _by_panels(
        self, x: np.ndarray, tiles: np.ndarray, is_turned: bool
    ) -> np.ndarray:
        """Returns each position times the tiles, (N, *sizes, channels)."""
        channels = x.shape[-1]
        n_rows, n_panels = x.size // channels, -(-x.size // (channels * PANEL))
        panels = np.empty(n_panels * channels * PANEL, np.float32)
        panel_loops.by_panels(x.reshape(-1), channels, panels)
        starts, offsets, numbers = self._turned_panels if is_turned else self._panels
        n_written = len(starts) - 1
        y = np.empty((n_panels * PANEL, n_written * SIDE), np.float32)
        threads.run_ranges(
            panel_loops.multiply,
            n_written,
            panels,
            n_rows,
            _flat(tiles),
            is_turned,
            starts,
            offsets,
            numbers,
            y.reshape(-1),
            size=max(1, self.n_tiles // n_written) * SIDE * n_rows,
        )
        return y[:n_rows].reshape(*x.shape[:-1], -1)

    @functools.cached_property
    def _panels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tiles of each 8 outputs; see :func:`.loops.tile_panels.multiply`."""
        return _panels_of(self._by_outs, self.live.shape[0], np.arange(self.n_tiles))

    @functools.cached_property
    def _turned_panels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tiles of each 8 inputs, which gradients of outputs are multiplied by."""
        return _panels_of(self._by_ins, self.live.shape[1], self._turned)

    @functools.cached_property
    def _sizes(self) -> tuple[int, int]:
        """Number of inputs, and of taps."""
        return self.live.shape[1] * SIDE, self.live.shape[2]

    @functools.cached_property
    def weights_of_tap(self) -> int:
        """Mean number of weights at a tap that are not skipped; at least 1."""
        return max(1, self.n_tiles * SIDE * SIDE // self.live.shape[2])


@functools.lru_cache(maxsize=256)
def block_rows(shape: Shape, live: bytes) -> BlockRows:
    """Returns the tiles that are not skipped, the same object for the same tiles.

    Args:
        shape: (O / 8, C / 8, taps).
        live: A byte for each tile, 0 for one that is skipped.
    """
    return BlockRows(np.frombuffer(live, np.uint8).reshape(shape) != 0)


def are_whole_tiles(shape: Shape) -> bool:
    """Returns whether weights (O, C, *kernel) can be cut into tiles."""
    return min(shape) > 0 and not shape[0] % SIDE and not shape[1] % SIDE


def live_tiles(is_zero: np.ndarray) -> np.ndarray:
    """Returns which tiles of weights have an element that is not zero.

    Args:
        is_zero: Whether each weight is zero, (O, C, *kernel).

    Returns:
        Boolean, (O / 8, C / 8, taps).

    Raises:
        ValueError: If 8 does not divide O and C.

    Example:
        >>> live_tiles(np.arange(16 * 8).reshape(16, 8) < 64)[:, 0, 0]
        array([False,  True])
    """
    n_outputs, n_inputs = is_zero.shape[:2]
    if not are_whole_tiles(is_zero.shape):
        raise ValueError(
            f"weights of {n_outputs} outputs and {n_inputs} inputs have no whole tiles:"
            f" give multiples of {SIDE}"
        )
    by_tiles = ~is_zero.reshape(n_outputs // SIDE, SIDE, n_inputs // SIDE, SIDE, -1)
    return by_tiles.any(axis=(1, 3))


@functools.lru_cache(maxsize=128)
def _of_outputs(
    rows: BlockRows, geometry: Geometry, n: int, sizes: Shape
) -> tuple[BlockPlan, list[Run]]:
    """Returns what each output of a convolution reads."""
    plan = convolution_blocks.of_outputs(geometry, n, rows.weights_of_tap, sizes)
    images = n, _n_padded(sizes, plan), math.prod(geometry.output_sizes(sizes))
    return plan, rows.runs(plan, images, False)


@functools.lru_cache(maxsize=128)
def _of_inputs(
    rows: BlockRows, geometry: Geometry, n: int, sizes: Shape, outputs: Shape
) -> tuple[BlockPlan, list[Run]]:
    """Returns the outputs of a convolution that read each input."""
    plan = convolution_blocks.of_inputs(
        geometry, n, rows.weights_of_tap, sizes, outputs
    )
    images = n, _n_padded(outputs, plan), math.prod(sizes)
    return plan, rows.runs(plan, images, True)


def _n_padded(sizes: Shape, plan: BlockPlan) -> int:
    return math.prod(n + sum(pad) for n, pad in zip(sizes, plan.pads))


@functools.cache
def _has_wide_registers() -> bool:
    """Returns whether the processor has AVX-512."""
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


def _has_panels(x: np.ndarray, geometry: Geometry) -> bool:
    """Returns whether positions are multiplied one by one, and fill a register."""
    is_pointwise = all(
        kernel == stride == 1 and pad == 0
        for kernel, stride, pad in zip(geometry.kernel, geometry.stride, geometry.pad)
    )
    return is_pointwise and x.size > SIDE * x.shape[-1] and _has_wide_registers()


def _panels_of(
    order: Tiles, n_written: int, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns first tiles, offsets in a panel, and numbers of tiles, in an order."""
    starts = np.searchsorted(order.written, np.arange(n_written + 1))
    return starts, order.read * (SIDE * PANEL), numbers


def _flat(tiles: np.ndarray) -> np.ndarray:
    return tiles.reshape(-1)


def _empty(plan: BlockPlan, shape: Shape) -> np.ndarray:
    """Returns an array for the positions of a plan; zeros where some read nothing."""
    make = np.empty if plan.is_complete else np.zeros
    return make(shape, np.float32)


def _by_eights(x: np.ndarray) -> np.ndarray:
    """Returns (N, *sizes, C) as (C / 8, positions, 8), flat."""
    eights = np.empty(x.size, np.float32)
    loops.by_eights(x.reshape(-1), x.shape[-1], eights)
    return eights


def _multiplied(
    x: np.ndarray, runs: list[Run], tiles: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Writes what each position reads, times the tiles, to y, and returns y."""
    x = _by_eights(x)
    for run in runs:
        threads.run_ranges(
            loops.multiply,
            -(-len(run.rows) // SIDE),
            x,
            run.rows,
            tiles.reshape(-1),
            run.starts,
            run.offsets,
            run.tiles,
            y.reshape(-1),
            run.targets,
            size=max(1, len(run.tiles)) * SIDE,
        )
    return y
