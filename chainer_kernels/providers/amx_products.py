"""Products of matrices in bfloat16 by the loops of :mod:`chainer_kernels.loops.amx`.

Operands are rounded where they are put in the order of AMX's registers, in one pass::

    a (m, k) float32 -> tiles --.
    b (k, n) float32 -> tiles ---+--> y (m, n) float32

For the same products oneDNN 3.2 takes 1.4 to 2.5 times as long. It reads operands in
the order in which they are.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from chainer_kernels import threads
from chainer_kernels.loops import amx, amx_tiles
from chainer_kernels.providers import onednn_library as dnnl

#: Bytes of an operand up to which a thread keeps the memory of its tiles.
_MOST_KEPT = 1 << 24
#: Multiplications that take as long as an element of a loop.
_PRODUCTS_PER_ELEMENT = 64

Shape = tuple[int, ...]


class Operand(NamedTuple):
    """A matrix of bfloat16, in tiles.

    Attributes:
        shape: Shape of the matrix.
        tiles: The tiles, flat.
    """

    shape: Shape
    tiles: np.ndarray


def is_usable() -> bool:
    """Returns whether this processor has AMX, and Numba compiles for it."""
    return amx.multiply.is_possible


def n_bytes(n_lines: int, n_inner: int) -> int:
    """Returns how much memory an operand takes.

    Args:
        n_lines: Rows of a left operand, or columns of a right one.
        n_inner: The other size.
    """
    return 2 * _n_tiles(n_lines, amx_tiles.LINES) * _n_tiles(n_inner) * amx_tiles.TILE


def left(a: np.ndarray) -> Operand:
    """Returns a left operand of products, of a matrix of float32."""
    tiles = dnnl.empty(n_bytes(*a.shape))
    return Operand(a.shape, _packed(a, True, tiles))


def right(b: np.ndarray) -> Operand:
    """Returns a right operand of products, of a matrix of float32."""
    tiles = dnnl.empty(n_bytes(*b.T.shape))
    return Operand(b.shape, _packed(b.T, False, tiles))


def product(
    a: np.ndarray | Operand,
    b: np.ndarray | Operand,
    out: np.ndarray | None = None,
    accumulate: bool = False,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Returns a product of matrices, written or added to ``out`` if there is one.

    Args:
        a: (m, k), of float32, or from :func:`left`.
        b: (k, n), of float32, or from :func:`right`.
        out: (m, n) of float32, whose columns are neighbours; ``None`` for a new array.
        accumulate: Whether the product is added to ``out``.
        bias: (n,), added to each row of a product that is not added to ``out``.
    """
    (m, k), n = a.shape, b.shape[1]
    if out is None:
        out = np.empty((m, n), np.float32)
    if not out.size:
        return out
    if out.strides[1] != out.itemsize:
        y = product(a, b, bias=bias)
        out[...] = out + y if accumulate else y
        return out
    tiles = _tiles_once(a, True), _tiles_once(b, False)
    # The numbers with which sums begin, and steps to the next row and column.
    before, steps = _ZEROS, (0, 0)
    if accumulate:
        before, steps = out, (out.strides[0], out.itemsize)
    elif bias is not None:
        before, steps = np.ascontiguousarray(bias), (0, bias.itemsize)
    by_rows = m >= n
    size = m if by_rows else n

    def compute(start: int, end: int) -> None:
        first, behind = (amx.BLOCK * i for i in (start, end))
        part = first, min(behind, size)
        ranges = (*part, 0, n) if by_rows else (0, m, *part)
        amx.multiply(
            *ranges,
            *(_address(each) for each in tiles),
            _n_tiles(k),
            *(_address(before), *steps),
            *(_address(out), out.strides[0]),
        )

    work = amx.BLOCK * min(m, n) * k // _PRODUCTS_PER_ELEMENT
    threads.run_ranges(compute, _n_tiles(size, amx.BLOCK), size=work)
    return out


#: Numbers with which sums begin.
_ZEROS = np.zeros(amx.BLOCK, np.float32)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _n_tiles(size: int, width: int = amx_tiles.WIDTH) -> int:
    return -(-size // width)


class _Here(threading.local):
    """Memory of this thread for the tiles of operands, by whether they are left."""

    def __init__(self) -> None:
        self.spaces = [dnnl.empty(0), dnnl.empty(0)]


_here = _Here()


def _tiles_once(operand: np.ndarray | Operand, is_left: bool) -> np.ndarray:
    """Returns the tiles of an operand, which are there until the next product.

    The C library would map new memory for each product, and fill it with zeros.
    """
    if isinstance(operand, Operand):
        return operand.tiles
    lines = operand if is_left else operand.T
    size = n_bytes(*lines.shape)
    space = _here.spaces[is_left]
    if space.size < size:
        space = dnnl.empty(size)
        if size <= _MOST_KEPT:
            _here.spaces[is_left] = space
    return _packed(lines, is_left, space[:size])


def _packed(lines: np.ndarray, is_left: bool, tiles: np.ndarray) -> np.ndarray:
    """Writes the tiles of a matrix (lines, inner size), and returns them."""
    rows, is_along = lines, True
    if lines.strides[1] != lines.itemsize:
        if lines.strides[0] == lines.itemsize:
            rows, is_along = lines.T, False
        else:
            rows = np.ascontiguousarray(lines)

    def pack(start: int, end: int) -> None:
        amx_tiles.pack(
            *(start, end, _address(rows), rows.strides[0], *rows.shape),
            *(is_along, is_left != is_along, _address(tiles)),
        )

    height = amx_tiles.LINES if is_along else amx_tiles.WIDTH
    n_down = _n_tiles(len(rows), height)
    threads.run_ranges(pack, n_down, size=height * rows.shape[1])
    return tiles
