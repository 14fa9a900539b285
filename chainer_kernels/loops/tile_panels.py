"""Products of many rows with tiles of 8 x 8 weights, in registers of 16 numbers.

For AVX-512. A register holds 16 rows, not the 8 outputs of a tile, so each weight that
is read meets two registers of rows::

    x      by panels of 32 rows: (panels, channels, 32), two registers a channel
    y      16 registers for 8 outputs of a panel: y[output] += x[input] w[input, output]

Each sum has the order of :mod:`.tile_sums`: over tiles, and over their inputs. So the
bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from chainer_kernels.compiling import loop
from chainer_kernels.loops import tile_sums
from chainer_kernels.loops.tile_sums import SIDE
from chainer_kernels.loops.vector_code import VectorCode, data_of

#: Rows of a panel, and of a register.
PANEL, WIDTH = 32, 16
#: Panels that stay in the cache while all tiles pass.
_PANELS = 2


def _product(n_registers: int, is_turned: bool) -> Callable:
    """Returns a function that writes 8 outputs of the first rows of a panel.

    Args:
        n_registers: Number of registers that these rows take.
        is_turned: Whether a tile is (8 that are written, 8 that are read).
    """
    to_input, to_output = (1, SIDE) if is_turned else (SIDE, 1)

    def typed(
        context: Any,
        panels: Any,
        place: Any,
        weights: Any,
        offsets: Any,
        tiles: Any,
        start: Any,
        end: Any,
        y: Any,
        target: Any,
        width: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            code, eights = VectorCode(builder, WIDTH), VectorCode(builder, SIDE)
            data = data_of(context, builder, signature, args)
            panels, place, weights, offsets, tiles, start, end, y, target, width = data
            own = code.at(panels, place)

            def add(k: Any, sums: Sequence[Any]) -> list[Any]:
                inputs = code.at(own, code.number(offsets, k))
                tile = code.at(weights, code.times(code.number(tiles, k), SIDE * SIDE))
                found = list(sums)
                for i in range(SIDE):
                    rows = [
                        code.vector(inputs, i * PANEL + r * WIDTH)
                        for r in range(n_registers)
                    ]
                    for o in range(SIDE):
                        w = code.number(tile, i * to_input + o * to_output)
                        for n, x in enumerate(rows, o * n_registers):
                            found[n] = code.multiply_add(x, code.repeated(w), found[n])
                return found

            totals = code.sums(start, end, SIDE * n_registers, add)
            for first in range(0, n_registers * WIDTH, SIDE):
                numbers = range(first % WIDTH, first % WIDTH + SIDE)
                outputs = totals[first // WIDTH :: n_registers]
                parts = [code.shuffled(each, each, numbers) for each in outputs]
                for row, values in enumerate(eights.transposed(parts), first):
                    code.store(values, y, target, code.times(width, row))
            return context.get_dummy_value()

        kinds = panels, place, weights, offsets, tiles, start, end, y, target, width
        return types.void(*kinds), generate

    return intrinsic(typed)


_full, _half = _product(2, False), _product(1, False)
_full_turned, _half_turned = _product(2, True), _product(1, True)


@loop("void(f4[::1], i8, f4[::1])")
def by_panels(rows, channels, panels):
    """Copies (rows, channels) to (panels, channels, 32), both flat.

    Args:
        rows: To be read.
        channels: A multiple of 8.
        panels: Written. Places behind the last row stay as they are.
    """
    n_rows = rows.size // channels
    for first in range(0, n_rows, SIDE):
        place = first // PANEL * channels * PANEL + first % PANEL
        n = min(SIDE, n_rows - first)
        if n == SIDE:
            for c in range(0, channels, SIDE):
                start = first * channels + c
                tile_sums.turn(rows, start, channels, panels, place + c * PANEL, PANEL)
        else:
            for i in range(n):
                for c in range(channels):
                    value = rows[(first + i) * channels + c]
                    panels[place + c * PANEL + i] = value


@loop("void(i8, i8, f4[::1], i8, f4[::1], b1, i8[::1], i8[::1], i8[::1], f4[::1])")
def multiply(start, end, panels, n_rows, weights, is_turned, starts, offsets, tiles, y):
    """Multiplies rows by the tiles that some outputs read.

    Args:
        start: The first 8 outputs, by their number.
        end: The 8 outputs behind the last ones.
        panels: Inputs, by panels, flat.
        n_rows: Number of rows.
        weights: Tiles, flat.
        is_turned: Whether a tile is (8 outputs, 8 inputs).
        starts: For each 8 outputs the first of their tiles, and the end of the last.
        offsets: For each tile, the place of its inputs in a panel.
        tiles: The number of that tile among the weights.
        y: Outputs, (rows of all panels, channels), flat, written.
    """
    width = (starts.size - 1) * SIDE
    n_panels = (n_rows + PANEL - 1) // PANEL
    size = panels.size // n_panels
    for group in range(0, n_panels, _PANELS):
        for out in range(start, end):
            i, j = starts[out], starts[out + 1]
            for panel in range(group, min(group + _PANELS, n_panels)):
                x, to = panel * size, panel * PANEL * width + out * SIDE
                is_full = n_rows - panel * PANEL > WIDTH
                if is_turned and is_full:
                    _full_turned(panels, x, weights, offsets, tiles, i, j, y, to, width)
                elif is_turned:
                    _half_turned(panels, x, weights, offsets, tiles, i, j, y, to, width)
                elif is_full:
                    _full(panels, x, weights, offsets, tiles, i, j, y, to, width)
                else:
                    _half(panels, x, weights, offsets, tiles, i, j, y, to, width)
