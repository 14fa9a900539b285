"""The shape of a convolution or a pooling, apart from its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Geometry(NamedTuple):
    """The shape of a convolution or a pooling, for each spatial axis.

    Attributes:
        kernel: Size of the window.
        stride: Its steps.
        pad: Zeros before, and at least so many behind unless a stride ends sooner.
        dilation: Distance of what the window reads.
        groups: How many parts of the channels are convolved apart.
        cover_all: Whether a window that reads the last inputs, and zeros behind them,
            has an output too.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    cover_all: bool = False

    def output_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Returns the spatial sizes of y, given those of x."""
        return tuple(
            (n + 2 * p - d * (k - 1) - 1 + (s - 1 if self.cover_all else 0)) // s + 1
            for n, k, s, p, d in zip(sizes, *self[:4])
        )

    def input_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Returns the smallest spatial sizes of x of which y has these."""
        return tuple(
            s * (n - 1) + d * (k - 1) + 1 - 2 * p - (s - 1 if self.cover_all else 0)
            for n, k, s, p, d in zip(sizes, *self[:4])
        )


def pooling_geometry(function: Any) -> Geometry:
    """Returns the shape of a node of Chainer's, a pooling of two or any dimensions."""
    if hasattr(function, "ksize"):
        shape = function.ksize, function.stride, function.pad
    else:
        shape = (
            (function.kh, function.kw),
            (function.sy, function.sx),
            (function.ph, function.pw),
        )
    dilation = (1,) * len(shape[0])
    # A gradient of an average has no such attribute.
    cover_all = bool(getattr(function, "cover_all", False))
    return Geometry(*map(tuple, shape), dilation, cover_all=cover_all)


def geometry_of(function: Any, kernel: tuple[int, ...]) -> Geometry:
    """Returns the shape of a node of Chainer's, a convolution of any dimensions.

    Args:
        function: The node.
        kernel: Size of its window.
    """
    if hasattr(function, "sy"):
        stride = function.sy, function.sx
        pad = function.ph, function.pw
        dilation = function.dy, function.dx
    else:
        stride, pad, dilation = function.stride, function.pad, function.dilate
    return Geometry(
        tuple(kernel),
        tuple(stride),
        tuple(pad),
        tuple(dilation),
        function.groups,
        bool(function.cover_all),
    )
