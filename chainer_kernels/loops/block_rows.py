"""Loops over the tiles of weights that are not skipped.

A tile has 8 outputs and 8 inputs, at one tap of a convolution's kernel. A list of tiles
gives for each its outputs, its inputs and its tap, by their numbers.
"""

import numpy as np

from chainer_kernels.compiling import loop
from chainer_kernels.loops import tile_sums
from chainer_kernels.loops.tile_sums import SIDE

# A literal number would take the arithmetic to float64.
ZERO = np.float32(0)
#: Rows that stay in the cache while all tiles pass: groups of 8, and single ones.
_GROUPS, _ROWS = 8, 64


@loop(
    "void(i8, i8, f4[::1], i8[::1], f4[::1], i8[::1], i8[::1], i8[::1], f4[::1],"
    " i8[::1])"
)
def multiply(start, end, x, rows, weights, starts, offsets, tiles, y, targets):
    """Multiplies rows by the tiles that their outputs read.

    Args:
        start: The first group of 8 rows.
        end: The group behind the last one.
        x: Inputs, flat, by eights.
        rows: Position of each row in x.
        weights: Tiles of (8 inputs, 8 outputs), flat.
        starts: For each 8 outputs the first of their tiles, and the end of the last.
        offsets: For each tile, the distance of its inputs from a row's position.
        tiles: The number of that tile among the weights.
        y: Outputs, (positions, channels), flat, written.
        targets: Position of each row in y.
    """
    width = (starts.size - 1) * SIDE
    for first in range(start, end, _GROUPS):
        last = min(first + _GROUPS, end)
        for out in range(starts.size - 1):
            for group in range(first, last):
                tile_sums.product(
                    x,
                    rows,
                    group * SIDE,
                    rows.size,
                    weights,
                    offsets,
                    tiles,
                    starts[out],
                    starts[out + 1],
                    y,
                    targets,
                    width,
                    out * SIDE,
                )


@loop(
    "void(i8, i8, f4[::1], i8[::1], i8[::1], f4[::1], i8[::1], i8[::1], f4[::1],"
    " i8[::1])"
)
def add_gradients(start, end, x, rows, offsets, gy, targets, columns, sums, tiles):
    """Adds the products of all rows to the gradients of tiles.

    Args:
        start: The first tile.
        end: The tile behind the last one.
        x: Inputs, flat, by eights.
        rows: Position of each row in x.
        offsets: For each tile, the distance of its inputs from a row's position.
        gy: Gradients of outputs, flat, by eights.
        targets: Position of each row in gy.
        columns: For each tile, the distance of its outputs from a row's position.
        sums: Tiles of (8 inputs, 8 outputs), flat, added to.
        tiles: The number of each tile among them.
    """
    for first in range(0, rows.size, _ROWS):
        last = min(first + _ROWS, rows.size)
        for k in range(start, end):
            tile_sums.gradient(
                x,
                rows,
                offsets[k],
                gy,
                targets,
                columns[k],
                first,
                last,
                sums,
                tiles[k],
            )


@loop("void(f4[::1], i8, f4[::1])")
def by_eights(positions, channels, eights):
    """Copies (positions, channels) to (channels / 8, positions, 8), both flat.

    Neighbouring positions of a tile are neighbours in memory so. In rows of a power of
    two they would share a few places of the cache.
    """
    n_positions, n_tiles = positions.size // channels, channels // SIDE
    for start in range(0, n_positions, _ROWS):
        end = min(start + _ROWS, n_positions)
        # Two tiles fill a line of the cache, which is read once so.
        for first in range(0, n_tiles, 2):
            for p in range(start, end):
                for c in range(first, min(first + 2, n_tiles)):
                    place = p * channels + c * SIDE
                    target = (c * n_positions + p) * SIDE
                    tile_sums.copy(positions, place, eights, target)


@loop("void(f4[::1], i8, i8, i8[::1], i8[::1], i8[::1], f4[::1])")
def gather(W, n_inputs, n_taps, outs, ins, taps, tiles):
    """Copies weights (O, C, taps) to tiles of (inputs, outputs), all flat.

    Args:
        W: The weights.
        n_inputs: C.
        n_taps: The number of taps.
        outs: For each tile the number of its outputs.
        ins: For each tile the number of its inputs.
        taps: For each tile its tap.
        tiles: Written.
    """
    row = n_inputs * n_taps
    for k in range(outs.size):
        place, first = outs[k] * SIDE * row + ins[k] * SIDE * n_taps, k * SIDE * SIDE
        if n_taps == 1:
            tile_sums.turn(W, place, row, tiles, first, SIDE)
        else:
            place += taps[k]
            for o in range(SIDE):
                for i in range(SIDE):
                    tiles[first + i * SIDE + o] = W[place + o * row + i * n_taps]


@loop("void(f4[::1], i8[::1], f4[::1])")
def turn(tiles, order, turned):
    """Copies tiles of (inputs, outputs) to those of (outputs, inputs), all flat.

    Args:
        tiles: The tiles.
        order: For each turned tile, its number among the tiles.
        turned: Written.
    """
    for k in range(order.size):
        source, target = order[k] * SIDE * SIDE, k * SIDE * SIDE
        tile_sums.turn(tiles, source, SIDE, turned, target, SIDE)


@loop("void(f4[::1], i8, i8, i8[::1], i8[::1], i8[::1], f4[::1])")
def spread(W, n_inputs, n_taps, outs, ins, taps, tiles):
    """Writes weights (O, C, taps) of which these are the tiles; zeros elsewhere.

    Args:
        W: Written, flat.
        n_inputs: C.
        n_taps: The number of taps.
        outs: For each tile the number of its outputs, ascending.
        ins: For each tile the number of its inputs.
        taps: For each tile its tap.
        tiles: Tiles of (inputs, outputs), flat.
    """
    k, row = 0, n_inputs * n_taps
    # Rows of a few outputs are still in the cache when their tiles follow the zeros.
    for out in range(W.size // (SIDE * row)):
        W[out * SIDE * row : (out + 1) * SIDE * row] = ZERO
        while k < outs.size and outs[k] == out:
            place, first = out * SIDE * row + ins[k] * SIDE * n_taps, k * SIDE * SIDE
            if n_taps == 1:
                tile_sums.turn(tiles, first, SIDE, W, place, row)
            else:
                place += taps[k]
                for o in range(SIDE):
                    for i in range(SIDE):
                        W[place + o * row + i * n_taps] = tiles[first + i * SIDE + o]
            k += 1


@loop("void(f4[::1], i8, i8, i8[::1], i8[::1], i8[::1], f4[::1])")
def add(W, n_inputs, n_taps, outs, ins, taps, tiles):
    """Adds tiles to their places in weights; the arguments are those of `spread`."""
    row = n_inputs * n_taps
    for k in range(outs.size):
        first = k * SIDE * SIDE
        place = outs[k] * SIDE * row + ins[k] * SIDE * n_taps + taps[k]
        for o in range(SIDE):
            for i in range(SIDE):
                W[place + o * row + i * n_taps] += tiles[first + i * SIDE + o]
