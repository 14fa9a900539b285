"""Sums of products with tiles of 8 x 8 weights, in vector registers.

Numba's own arrays keep a sum in memory. These functions are written in the language of
LLVM, so that eight sums of eight numbers stay in registers over all tiles::

    product     for 8 rows       y[row, 8 outputs] = sum over tiles, over 8 inputs:
                                     x[row, input] w[input, 8 outputs]
    gradient    for 8 inputs     g[input, 8 outputs] += sum over rows:
                                     x[row, input] gy[row, 8 outputs]

The order of additions depends on the tiles alone, and not on the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Rows, inputs and outputs of a tile: the numbers in a vector of AVX2.
SIDE = 8

_I64, _F32 = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, SIDE)
_ZEROS = ir.Constant(_VECTOR, [0.0] * SIDE)


class _Code:
    """The code of one function: arrays by their data, and vectors of :data:`SIDE`."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        # Fused where the processor does, and two instructions elsewhere.
        self._multiply_add = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.fmuladd.v8f32"
        )

    def at(self, pointer: Any, index: Any) -> Any:
        """Returns the address of an element."""
        if isinstance(index, int):
            index = ir.Constant(_I64, index)
        return self.builder.gep(pointer, [index])

    def number(self, pointer: Any, index: Any) -> Any:
        """Returns an element."""
        return self.builder.load(self.at(pointer, index))

    def vector(self, pointer: Any, index: Any) -> Any:
        """Returns neighbouring elements as a vector."""
        return self.builder.load(self._as_vector(pointer, index), align=4)

    def store(self, vector: Any, pointer: Any, index: Any) -> None:
        """Writes a vector to neighbouring elements."""
        self.builder.store(vector, self._as_vector(pointer, index), align=4)

    def _as_vector(self, pointer: Any, index: Any) -> Any:
        return self.builder.bitcast(self.at(pointer, index), _VECTOR.as_pointer())

    def repeated(self, number: Any) -> Any:
        """Returns a vector of one number."""
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = ir.Constant(ir.IntType(32), 0)
        one = self.builder.insert_element(undefined, number, first)
        places = ir.Constant(ir.VectorType(ir.IntType(32), SIDE), [0] * SIDE)
        return self.builder.shuffle_vector(one, undefined, places)

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        """Returns ``a * b + total``."""
        return self.builder.call(self._multiply_add, [a, b, total])

    def sums(
        self, start: Any, end: Any, add: Callable[[Any, Sequence[Any]], list[Any]]
    ) -> list[Any]:
        """Returns sums over a range, which begin as zeros.

        Args:
            start: The first index.
            end: The index behind the last.
            add: Takes an index and the sums before it, and returns those after it.
        """
        builder, before = self.builder, self.builder.basic_block
        body = builder.append_basic_block("sum")
        behind = builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed("<", start, end), body, behind)
        builder.position_at_end(body)
        index = builder.phi(_I64)
        sums = [builder.phi(_VECTOR) for _ in range(SIDE)]
        found = add(index, sums)
        following = builder.add(index, ir.Constant(_I64, 1))
        index.add_incoming(start, before)
        index.add_incoming(following, builder.basic_block)
        for total, each in zip(sums, found):
            total.add_incoming(_ZEROS, before)
            total.add_incoming(each, builder.basic_block)
        is_more = builder.icmp_signed("<", following, end)
        last = builder.basic_block
        builder.cbranch(is_more, body, behind)
        builder.position_at_end(behind)
        totals = [builder.phi(_VECTOR) for _ in range(SIDE)]
        for total, each in zip(totals, found):
            total.add_incoming(_ZEROS, before)
            total.add_incoming(each, last)
        return totals


def _data(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> list[Any]:
    """Returns arguments, with the address of its data for each array."""
    return [
        context.make_array(kind)(context, builder, value).data
        if isinstance(kind, types.Array)
        else value
        for kind, value in zip(signature.args, args)
    ]


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
        code = _Code(builder)
        source, start, target, place = _data(context, builder, signature, args)
        code.store(code.vector(source, start), target, place)
        return context.get_dummy_value()

    return types.void(source, start, target, place), generate


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
        code = _Code(builder)
        data = iter(_data(context, builder, signature, args))
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

        for number, total in zip(numbers, code.sums(start, end, add)):
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
        code = _Code(builder)
        (x, rows, offset, gy, targets, column, start, end, sums, tile) = _data(
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
        for i, total in enumerate(code.sums(start, end, add)):
            before = code.vector(own, i * SIDE)
            code.store(builder.fadd(before, total), own, i * SIDE)
        return context.get_dummy_value()

    kinds = x, rows, offset, gy, targets, column, start, end, sums, tile
    return types.void(*kinds), generate
