"""Sums of products with tiles of 8 x 8 weights, in vector registers.

Eight sums of eight numbers stay in registers over all tiles::

    product     for 8 rows       y[row, 8 outputs] = sum over tiles, over 8 inputs:
                                     x[row, input] w[input, 8 outputs]
    gradient    for 8 inputs     g[input, 8 outputs] += sum over rows:
                                     x[row, input] gy[row, 8 outputs]

The order of additions depends on the tiles alone, and not on the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from chainer_kernels.loops.vector_code import VectorCode, data_of

#: Rows, inputs and outputs of a tile: the numbers in a vector of AVX2.
SIDE = 8

_I64 = ir.IntType(64)


@intrinsic
def copy(context: Any, source: Any, start: Any, target: Any, place: Any) -> Any:
    """Copies 8 neighbouring numbers.

    Args:
        context: Numba's typing context.
        source: Array to read, flat.
        start: The first of the numbers.
        target: Array to write, flat.
        place: Where the first one goes.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = VectorCode(builder, SIDE)
        source, start, target, place = data_of(context, builder, signature, args)
        code.store(code.vector(source, start), target, place)
        return context.get_dummy_value()

    return types.void(source, start, target, place), generate


@intrinsic
def turn(
    context: Any,
    source: Any,
    start: Any,
    step: Any,
    target: Any,
    place: Any,
    target_step: Any,
) -> Any:
    """Copies 8 rows of 8 neighbouring numbers to 8 columns.

    Args:
        context: Numba's typing context.
        source: Array to read, flat.
        start: The first number of the first row.
        step: The distance of rows.
        target: Array to write, flat.
        place: Where the first number goes.
        target_step: The distance of numbers that were neighbours.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = VectorCode(builder, SIDE)
        data = data_of(context, builder, signature, args)
        source, start, step, target, place, target_step = data
        rows = [code.vector(source, start, code.times(step, i)) for i in range(SIDE)]
        for i, row in enumerate(code.transposed(rows)):
            code.store(row, target, place, code.times(target_step, i))
        return context.get_dummy_value()

    kinds = source, start, step, target, place, target_step
    return types.void(*kinds), generate


@intrinsic
def product(
    context: Any,
    x: Any,
    rows: Any,
    first: Any,
    n_rows: Any,
    weights: Any,
    offsets: Any,
    tiles: Any,
    start: Any,
    end: Any,
    y: Any,
    targets: Any,
    width: Any,
    column: Any,
) -> Any:
    """Writes 8 outputs of 8 rows; rows behind the last one are the last one again.

    Args:
        context: Numba's typing context.
        x: Inputs, flat, by eights: (channels / 8, positions, 8).
        rows: Position of each row in ``x``.
        first: The first of the 8 rows.
        n_rows: Number of all rows.
        weights: Tiles of (8 inputs, 8 outputs), flat.
        offsets: For each tile, the distance of its inputs from a row's position.
        tiles: The number of that tile among the weights.
        start: The first tile that the outputs read.
        end: The tile behind the last one.
        y: Outputs, flat, (positions, channels), written.
        targets: Position of each row in ``y``.
        width: Number of its channels.
        column: The first of the 8 channels.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = VectorCode(builder, SIDE)
        data = iter(data_of(context, builder, signature, args))
        x, rows, first, n_rows, weights, offsets, tiles = itertools.islice(data, 7)
        start, end, y, targets, width, column = data
        last = builder.sub(n_rows, ir.Constant(_I64, 1))
        numbers = []
        for i in range(SIDE):
            number = builder.add(first, ir.Constant(_I64, i))
            is_row = builder.icmp_signed("<", number, n_rows)
            numbers.append(builder.select(is_row, number, last))
        side = ir.Constant(_I64, SIDE)
        positions = [code.number(rows, number) for number in numbers]
        inputs = [code.at(x, builder.mul(place, side)) for place in positions]

        def add(k: Any, sums: Sequence[Any]) -> list[Any]:
            offset, tile = code.number(offsets, k), code.number(tiles, k)
            here = [code.at(pointer, offset) for pointer in inputs]
            place = builder.mul(tile, ir.Constant(_I64, SIDE * SIDE))
            found, own = list(sums), code.at(weights, place)
            for i in range(SIDE):
                w = code.vector(own, i * SIDE)
                for r in range(SIDE):
                    value = code.repeated(code.number(here[r], i))
                    found[r] = code.multiply_add(value, w, found[r])
            return found

        for number, total in zip(numbers, code.sums(start, end, SIDE, add)):
            target = builder.mul(code.number(targets, number), width)
            code.store(total, y, builder.add(target, column))
        return context.get_dummy_value()

    kinds = x, rows, first, n_rows, weights, offsets, tiles, start, end, y, targets
    return types.void(*kinds, width, column), generate


@intrinsic
def gradient(
    context: Any,
    x: Any,
    rows: Any,
    offset: Any,
    gy: Any,
    targets: Any,
    column: Any,
    start: Any,
    end: Any,
    sums: Any,
    tile: Any,
) -> Any:
    """Adds some rows to the gradient of a tile.

    Args:
        context: Numba's typing context.
        x: Inputs, flat, by eights: (channels / 8, positions, 8).
        rows: Position of each row in ``x``.
        offset: Distance of the tile's inputs from a row's position.
        gy: Gradients of outputs, flat, by eights.
        targets: Position of each row in ``gy``.
        column: Distance of the tile's outputs from a row's position.
        start: The first row.
        end: The row behind the last one.
        sums: Tiles of (8 inputs, 8 outputs), flat, added to.
        tile: The number of the tile among them.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = VectorCode(builder, SIDE)
        (x, rows, offset, gy, targets, column, start, end, sums, tile) = data_of(
            context, builder, signature, args
        )
        side = ir.Constant(_I64, SIDE)

        def add(n: Any, sums: Sequence[Any]) -> list[Any]:
            place = builder.mul(code.number(rows, n), side)
            place = builder.add(place, offset)
            target = builder.mul(code.number(targets, n), side)
            target = builder.add(target, column)
            g, own = code.vector(gy, target), code.at(x, place)
            return [
                code.multiply_add(code.repeated(code.number(own, i)), g, sums[i])
                for i in range(SIDE)
            ]

        place = builder.mul(tile, ir.Constant(_I64, SIDE * SIDE))
        own = code.at(sums, place)
        for i, total in enumerate(code.sums(start, end, SIDE, add)):
            before = code.vector(own, i * SIDE)
            code.store(builder.fadd(before, total), own, i * SIDE)
        return context.get_dummy_value()

    kinds = x, rows, offset, gy, targets, column, start, end, sums, tile
    return types.void(*kinds), generate
