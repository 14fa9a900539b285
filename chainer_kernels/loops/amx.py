"""Products of matrices of bfloat16 by AMX, whose registers hold 16 x 16 sums.

::

    a (m, k), b (k, n)   in tiles of :mod:`.amx_tiles`
    y (m, n)             four tiles of sums stay in registers over all of k

The order of loops keeps operands in the caches::

    columns of y, so few that their tiles of b stay in the second cache
      a part of k, so short that tiles of 32 rows of a stay there as well
        32 rows of y
          32 of the columns: sums, which begin with those of the part before
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from chainer_kernels.compiling import loop
from chainer_kernels.loops.addresses import copy, moved, pointer, space
from chainer_kernels.loops.amx_tiles import FEATURES, LINES, TILE, WIDTH

#: Lines of two tiles: so many rows and columns of y are computed at once.
BLOCK = 2 * LINES
#: Bytes of tiles of b that stay in the cache while all rows of a pass.
_CACHED = 1 << 20
#: Most tiles of a line between two reads of its sums.
_DEEPEST = 40

_I8, _I64 = ir.IntType(8), ir.IntType(64)
TILE_BYTES, LINE_BYTES = 2 * TILE, 2 * WIDTH
#: Palette 1; 8 registers, each of 16 rows of 64 bytes.
_SHAPES = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])


def _call(builder: Any, name: str, *arguments: Any) -> None:
    """Calls an instruction of AMX, by LLVM's name."""
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}")
    builder.call(function, arguments)


@intrinsic
def _begin(context: Any) -> Any:
    """Sets the shapes of this thread's registers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        constant = ir.Constant(ir.ArrayType(_I8, len(_SHAPES)), bytearray(_SHAPES))
        place = cgutils.alloca_once_value(builder, constant)
        _call(builder, "ldtilecfg", builder.bitcast(place, _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _end(context: Any) -> Any:
    """Gives this thread's registers back."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _sums(n_rows: int, n_columns: int) -> Callable:
    """Returns a function that computes some tiles of y, with their sums in registers.

    Args:
        n_rows: How many tiles below each other, 1 or 2.
        n_columns: How many tiles beside each other, 1 or 2.
    """

    def number(value: int) -> Any:
        return ir.Constant(_I8, value)

    def typed(
        context: Any,
        a: Any,
        b: Any,
        line: Any,
        n_inner: Any,
        begin: Any,
        begin_row: Any,
        begin_column: Any,
        y: Any,
        y_row: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            a, b, line, n_inner, begin, begin_row, begin_column, y, y_row = args
            places = [(i, j) for i in range(n_rows) for j in range(n_columns)]
            for i, j in places:
                source = moved(builder, begin, begin_row, LINES * i)
                source = moved(builder, source, begin_column, LINES * j)
                target = number(2 * i + j)
                source = pointer(builder, source)
                _call(builder, "tileloadd64", target, source, begin_row)
            row = ir.Constant(_I64, LINE_BYTES)
            with cgutils.for_range(builder, n_inner) as inner:
                step = builder.mul(inner.index, ir.Constant(_I64, TILE_BYTES))
                loaded = []
                for i, j in places:
                    # Loads between products keep both units of the processor busy.
                    for first, operand, which in ((4, a, i), (6, b, j)):
                        if first + which not in loaded:
                            source = moved(builder, operand, line, which)
                            source = pointer(builder, builder.add(source, step))
                            target = number(first + which)
                            _call(builder, "tileloadd64", target, source, row)
                            loaded.append(first + which)
                    registers = map(number, (2 * i + j, 4 + i, 6 + j))
                    _call(builder, "tdpbf16ps", *registers)
            for i, j in places:
                target = moved(builder, y, y_row, LINES * i)
                target = pointer(builder, moved(builder, target, 4 * LINES, j))
                _call(builder, "tilestored64", number(2 * i + j), target, y_row)
            return context.get_dummy_value()

        kinds = a, b, line, n_inner, begin, begin_row, begin_column, y, y_row
        return types.void(*kinds), generate

    return intrinsic(typed)


_two_by_two, _two_by_one = _sums(2, 2), _sums(2, 1)
_one_by_two, _one_by_one = _sums(1, 2), _sums(1, 1)


@loop(f"void({', '.join(['i8'] * 12)})", features=FEATURES)
def multiply(
    row,
    end_row,
    column,
    end_column,
    a,
    b,
    n_inner,
    before,
    before_row,
    before_column,
    y,
    y_row,
):
    """Computes some rows and columns of ``y = before + a b``; arrays are addresses.

    Args:
        row: The first row, a multiple of :data:`BLOCK`.
        end_row: The row behind the last one.
        column: The first column, a multiple of :data:`BLOCK`.
        end_column: The column behind the last one.
        a: Tiles.
        b: Tiles.
        n_inner: Number of tiles of a line.
        before: The numbers with which sums begin, ``y`` perhaps.
        before_row: Bytes from one of its rows to the next.
        before_column: Bytes from one of its columns to the next: 4; or 0 where all
            columns read the same :data:`BLOCK` numbers.
        y: The result, float32.
        y_row: Bytes from one of its rows to the next.
    """
    edge = space()
    line = n_inner * LINE_BYTES
    n_deep = max(1, (n_inner + _DEEPEST - 1) // _DEEPEST)
    deep = (n_inner + n_deep - 1) // n_deep
    most = max(1, _CACHED // max(1, deep * LINE_BYTES) // BLOCK)
    n_blocks = (end_column - column + BLOCK - 1) // BLOCK
    n_wide = max(1, (n_blocks + most - 1) // most)
    width = max(1, (n_blocks + n_wide - 1) // n_wide) * BLOCK
    _begin()
    for start in range(column, end_column, width):
        end = min(start + width, end_column)
        for k in range(0, max(1, n_inner), max(1, deep)):
            n_now = min(deep, n_inner - k)
            initial, initial_row, initial_column = before, before_row, before_column
            if k > 0:
                initial, initial_row, initial_column = y, y_row, 4
            for i in range(row, end_row, BLOCK):
                n_rows = min(BLOCK, end_row - i)
                for j in range(start, end, BLOCK):
                    n_columns = min(BLOCK, end_column - j)
                    tiles = a + i * line + k * TILE_BYTES
                    others = b + j * line + k * TILE_BYTES
                    first = initial + i * initial_row + j * initial_column
                    result = y + i * y_row + j * 4
                    is_whole = n_rows % LINES == 0 and n_columns % LINES == 0
                    if is_whole:
                        begin, begin_row = first, initial_row
                        begin_column, target, step = initial_column, result, y_row
                    else:
                        for p in range(n_rows):
                            place = edge + p * BLOCK * 4
                            copy(first + p * initial_row, place, n_columns * 4)
                        begin, begin_row = edge, BLOCK * 4
                        begin_column, target, step = 4, edge, BLOCK * 4
                    where = begin, begin_row, begin_column, target, step
                    if n_rows > LINES and n_columns > LINES:
                        _two_by_two(tiles, others, line * LINES, n_now, *where)
                    elif n_rows > LINES:
                        _two_by_one(tiles, others, line * LINES, n_now, *where)
                    elif n_columns > LINES:
                        _one_by_two(tiles, others, line * LINES, n_now, *where)
                    else:
                        _one_by_one(tiles, others, line * LINES, n_now, *where)
                    if not is_whole:
                        for p in range(n_rows):
                            place = edge + p * BLOCK * 4
                            copy(place, result + p * y_row, n_columns * 4)
    _end()
