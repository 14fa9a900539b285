"""Matrices rounded to bfloat16, in the order in which AMX reads its registers.

A register holds 1024 bytes, a tile::

    a (m, k)   tiles of 16 rows, and 32 numbers of each row
    b (k, n)   tiles of 16 columns, and 32 numbers of each column, a pair from each
               column after the other

The tiles of an operand lie as (lines / 16, k / 32, 16, 32), where lines are rows of a,
or columns of b. Behind the last line and the last number of a line there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from chainer_kernels.compiling import loop
from chainer_kernels.loops.addresses import clear, copy, moved, pointer, space

#: Features that the processor must have, by LLVM's names.
FEATURES = ("amx-tile", "amx-bf16")
#: Lines of a tile, numbers of each line, and numbers of a tile.
LINES, WIDTH = 16, 32
TILE = LINES * WIDTH

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_SINGLES, _CODES = ir.VectorType(_I32, 16), ir.VectorType(_I16, 16)
_ROW_BYTES = 2 * WIDTH


def _rounded(builder: Any, bits: Any) -> Any:
    """Returns float32, as bits, whose upper halves are rounded to bfloat16."""

    def all_of(value: int) -> Any:
        return ir.Constant(_SINGLES, [value] * 16)

    odd = builder.and_(builder.lshr(bits, all_of(16)), all_of(1))
    near = builder.add(builder.add(bits, all_of(0x7FFF)), odd)
    size = builder.and_(bits, all_of(0x7FFFFFFF))
    # The carry would turn some NaN into a number.
    is_nan = builder.icmp_unsigned(">", size, all_of(0x7F800000))
    return builder.select(is_nan, builder.or_(bits, all_of(0x400000)), near)


def _turned(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """Returns the columns of 16 vectors of 16 numbers."""
    rows = list(rows)
    for size in (1, 2, 4, 8):
        places = range(LINES)
        upper = [c if not c & size else LINES + c - size for c in places]
        lower = [c + size if not c & size else LINES + c for c in places]
        for i in range(LINES):
            if not i & size:
                pair = rows[i], rows[i + size]
                rows[i], rows[i + size] = (
                    builder.shuffle_vector(*pair, ir.Constant(_SINGLES, chosen))
                    for chosen in (upper, lower)
                )
    return rows


def _tile(is_along: bool, is_turned: bool) -> Callable:
    """Returns a function that writes one tile.

    Args:
        is_along: Whether it reads 16 lines of 32 numbers, or numbers of 32 rows, in
            each of which 16 lines lie beside each other.
        is_turned: Whether numbers of a line are written below each other, by pairs.
    """

    def typed(context: Any, source: Any, step: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source, step, target = args
            half = ir.Constant(_SINGLES, [16] * 16)

            def read(row: int, place: int = 0) -> Any:
                """Returns 16 numbers, in the upper halves of 32 bits."""
                address = moved(builder, moved(builder, source, step, row), place)
                bits = builder.load(pointer(builder, address, _SINGLES), align=4)
                return _rounded(builder, bits)

            rows = []
            for i in range(LINES):
                if is_along:
                    codes = [
                        builder.trunc(builder.lshr(read(i, place), half), _CODES)
                        for place in (0, 64)
                    ]
                    order = ir.Constant(ir.VectorType(_I32, 32), list(range(32)))
                    both = builder.shuffle_vector(*codes, order)
                    rows.append(builder.bitcast(both, _SINGLES))
                else:
                    first, second = read(2 * i), read(2 * i + 1)
                    mask = ir.Constant(_SINGLES, [0xFFFF0000] * 16)
                    second = builder.and_(second, mask)
                    rows.append(builder.or_(builder.lshr(first, half), second))
            for i, row in enumerate(_turned(builder, rows) if is_turned else rows):
                address = moved(builder, target, _ROW_BYTES, i)
                builder.store(row, pointer(builder, address, _SINGLES), align=64)
            return context.get_dummy_value()

        return types.void(source, step, target), generate

    return intrinsic(typed)


_lines, _turned_lines = _tile(True, False), _tile(True, True)
_rows, _turned_rows = _tile(False, False), _tile(False, True)


@loop(f"void({', '.join(['i8'] * 6)}, b1, b1, i8)", features=FEATURES)
def pack(start, end, rows, row, n_rows, n_columns, is_along, is_turned, tiles):
    """Writes tiles of some rows of a matrix; arrays are given by their addresses.

    Args:
        start: The first rows, by the number of their tiles.
        end: The rows behind the last ones.
        rows: The matrix, float32, whose columns are neighbours.
        row: Bytes from one of its rows to the next.
        n_rows: Number of all rows.
        n_columns: Number of its columns.
        is_along: Whether lines are its rows, or its columns.
        is_turned: Whether numbers of a line are written below each other, by pairs.
        tiles: The result, which begins with a line of the cache.
    """
    height, width = (LINES, WIDTH) if is_along else (WIDTH, LINES)
    n_down = (n_rows + height - 1) // height
    n_beside = (n_columns + width - 1) // width
    edge = space()
    for i in range(start, end):
        n = min(height, n_rows - i * height)
        for j in range(n_beside):
            m = min(width, n_columns - j * width)
            place = i * n_beside + j if is_along else j * n_down + i
            target = tiles + place * TILE * 2
            source, step = rows + i * height * row + j * width * 4, row
            if n < height or m < width:
                clear(edge, TILE * 4)
                for p in range(n):
                    copy(source + p * row, edge + p * width * 4, m * 4)
                source, step = edge, width * 4
            if is_along and is_turned:
                _turned_lines(source, step, target)
            elif is_along:
                _lines(source, step, target)
            elif is_turned:
                _turned_rows(source, step, target)
            else:
                _rows(source, step, target)
