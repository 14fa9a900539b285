"""Linear layers and convolutions of inputs and weights of 8 bits, in whole numbers.

::

    x float32 -to_whole-> q uint8 -product with W-> sums int32 -from_sums-> y float32

The product is computed in whole numbers where the processor has instructions for them.
Elsewhere it is computed in float32, with so few terms at a time that no sum is rounded.
The bits are the same, so ranks and runs may choose differently. The first call with a
shape measures both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from chainer_kernels import threads, whole_numbers
from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import channels_first, channels_last
from chainer_kernels.loops import whole_numbers as loops
from chainer_kernels.providers import active
from chainer_kernels.whole_numbers import EXACT_TERMS

#: Terms with which sums of products of 255 and 255 stay below 2^31.
_MOST_TERMS = 1 << 15
#: Sums of fewer terms than these cost less than it costs to write what they stand for,
#: which a convolution of few channels does for so many outputs of each input.
_FEW_TERMS, _MANY_OUTPUTS = 64, 8
#: Timed runs of each way; the fastest counts. Runs before them compile and allocate.
_N_RUNS = 3

Shape = tuple[int, ...]
#: A way to the sums of an input and weights.
Way = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Inputs(NamedTuple):
    """How inputs are written: ``scale (q - zero)``, q from 0 to ``highest``."""

    scale: float
    zero: int
    highest: int


class Weights(NamedTuple):
    """Weights as whole numbers: ``scale (whole - zero)``.

    Attributes:
        whole: (O, I), or (O, C / groups, *kernel): int8 or uint8.
        scale: float32, for each output or for all, with as many axes.
        zero: The whole number that stands for 0, for each output or for all, with as
            many axes.
    """

    whole: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


class LayerChoice(NamedTuple):
    """How a shape is computed.

    Attributes:
        x: The shape of the inputs, (N, I) or (N, C, *sizes).
        W: The shape of the weights.
        geometry: Geometry of a convolution; ``None`` for a linear layer.
        ms_whole: Milliseconds of the product of whole numbers.
        ms_float32: Milliseconds of products in float32, including the conversion of
            whole numbers to float32.
    """

    x: Shape
    W: Shape
    geometry: Geometry | None
    ms_whole: float
    ms_float32: float

    @property
    def is_whole(self) -> bool:
        """Whether the product of whole numbers was faster, and is used."""
        return self.ms_whole < self.ms_float32


#: Measured choices, by shapes and geometry.
_choices: dict[tuple, LayerChoice] = {}


def choice_of(x: Shape, W: Shape, geometry: Geometry | None) -> LayerChoice | None:
    """Returns the choice that this process measured for a shape, or ``None``.

    Args:
        x: The shape of the inputs, (N, I) or (N, C, *sizes).
        W: The shape of the weights.
        geometry: Geometry of a convolution; ``None`` for a linear layer.
    """
    return _choices.get((x, W, geometry))


def is_offered(W: Shape) -> bool:
    """Returns whether :func:`linear` or :func:`convolution` may be the fastest way.

    Args:
        W: The shape of the weights.
    """
    n_terms, n_taps = math.prod(W[1:]), math.prod(W[2:])
    is_exact = 0 < n_terms <= _MOST_TERMS and n_taps <= EXACT_TERMS
    return is_exact and whole_numbers.instructions() is not None


def gains(x: Shape, W: Shape, geometry: Geometry) -> bool:
    """Returns whether :func:`convolution` beats one on inputs rounded in float32.

    Whole numbers save a part of rounding inputs, and a part of the products; they cost
    a pass over the outputs. Rounding in float32 gives other bits, so shapes decide and
    no measurement does. The number of samples has no influence.

    Args:
        x: The shape of the inputs, (N, C, *sizes).
        W: The shape of the weights.
        geometry: The convolution's.

    Example:
        >>> padded = Geometry((3, 3), (1, 1), (1, 1), (1, 1))
        >>> [gains((8, n, 32, 32), (64, n, 3, 3), padded) for n in (3, 16)]
        [False, True]
    """
    n_outputs = W[0] * math.prod(geometry.output_sizes(x[2:]))
    are_many = n_outputs >= _MANY_OUTPUTS * math.prod(x[1:])
    return math.prod(W[1:]) >= _FEW_TERMS or not are_many


def linear(
    x: np.ndarray, inputs: Inputs, weights: Weights, b: np.ndarray | None
) -> np.ndarray:
    """Returns what a linear layer gives for inputs rounded to 8 bits.

    Args:
        x: (N, I), float32. A row with a NaN in it gives NaN alone.
        inputs: How they are rounded.
        weights: The weights.
        b: (O,), float32, or nothing.

    Returns:
        (N, O), float32: the same bits whichever way sums are computed, and however
        samples come together in a call.
    """
    x = np.ascontiguousarray(x)
    whole, scales, row_sums = _rounded(x, inputs)
    W, W_zero = _signed(weights)
    ways = [product_in_float32]
    if whole_numbers.has_product(x.shape, W.shape):
        ways.insert(0, whole_numbers.product)
    sums = _sums((x.shape, W.shape, None), ways, whole, W)
    return _outputs(sums, scales, row_sums, inputs.zero, W, weights.scale, W_zero, b)


def convolution(
    x: np.ndarray,
    inputs: Inputs,
    weights: Weights,
    b: np.ndarray | None,
    geometry: Geometry,
) -> np.ndarray:
    """Returns what a convolution gives for inputs rounded to 8 bits.

    Args:
        x: (N, C, *sizes), float32.
        inputs: How they are rounded.
        weights: The weights; 0 stands for 0 among them.
        b: (O,), float32, or nothing.
        geometry: The convolution's.

    Returns:
        (N, O, *sizes), float32, as of :func:`linear`. What reads a NaN is NaN.
    """
    pixels = channels_last(x)
    # Rows of few channels would be short for the loop.
    whole, scales, _ = _rounded(pixels.reshape(len(pixels), -1), inputs)
    # Padding must stand for 0.
    whole = _padded(whole.reshape(pixels.shape), geometry.pad, inputs.zero)
    inner = geometry._replace(pad=(0,) * len(geometry.pad))
    W, _ = _signed(weights)

    def in_whole_numbers(whole: np.ndarray, W: np.ndarray) -> np.ndarray:
        return whole_numbers.convolution(whole, W, inner)

    def in_float32(whole: np.ndarray, W: np.ndarray) -> np.ndarray:
        return convolution_in_float32(whole, W, inner)

    ways = [in_float32]
    if whole_numbers.has_convolution(whole.shape, W.shape, inner):
        ways.insert(0, in_whole_numbers)
    sums = _sums((x.shape, W.shape, geometry), ways, whole, W)
    rows = sums.reshape(-1, len(W))
    y = _outputs(
        rows,
        np.full(len(rows), inputs.scale, np.float32),
        np.zeros(len(rows), np.int32),
        inputs.zero,
        W,
        weights.scale,
        np.zeros(1, np.int32),
        b,
    ).reshape(sums.shape)
    if np.isnan(scales).any():
        lost = np.where(np.isnan(pixels), pixels, np.float32(0))
        y += active().convolution(lost, np.ones(W.shape, np.float32), None, geometry)
    return channels_first(y)


def product_in_float32(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T``, int32, by exact products in float32.

    Args:
        x: (N, I), uint8.
        W: (O, I), int8.
    """
    sums = np.zeros((len(x), len(W)), np.int32)
    left, right = x.astype(np.float32), W.astype(np.float32)
    for start in range(0, x.shape[1], EXACT_TERMS):
        here = slice(start, start + EXACT_TERMS)
        _add(active().product(left[:, here], right[:, here].T), sums)
    return sums


def convolution_in_float32(
    x: np.ndarray, W: np.ndarray, geometry: Geometry
) -> np.ndarray:
    """Returns a convolution, int32, by exact ones in float32.

    Args:
        x: (N, *sizes, C), uint8.
        W: (O, C / groups, *kernel), int8.
        geometry: The convolution's, without padding.
    """
    sums = np.zeros((len(x), *geometry.output_sizes(x.shape[1:-1]), len(W)), np.int32)
    by_groups = x.reshape(*x.shape[:-1], geometry.groups, W.shape[1])
    step = EXACT_TERMS // math.prod(W.shape[2:])
    for start in range(0, W.shape[1], step):
        here = slice(start, start + step)
        left = by_groups[..., here].astype(np.float32, order="C")
        right = W[:, here].astype(np.float32, order="C")
        left = left.reshape(*x.shape[:-1], -1)
        _add(active().convolution(left, right, None, geometry), sums)
    return sums


def _rounded(x: np.ndarray, inputs: Inputs) -> tuple[np.ndarray, ...]:
    """Returns rows as whole numbers, their scales, and their sums."""
    whole = np.empty(x.shape, np.uint8)
    scales, sums = np.empty(len(x), np.float32), np.empty(len(x), np.int32)
    threads.run_slices(
        loops.to_whole,
        [x, whole, scales, sums],
        *(np.float32(inputs.scale), inputs.zero, inputs.highest),
    )
    return whole, scales, sums


def _signed(weights: Weights) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights as int8, and the whole number that stands for 0 among them."""
    whole = np.ascontiguousarray(weights.whole)
    if whole.dtype == np.int8:
        return whole, weights.zero
    return (whole ^ np.uint8(128)).view(np.int8), weights.zero - 128


def _padded(x: np.ndarray, pad: Shape, zero: int) -> np.ndarray:
    """Returns (N, *sizes, C) padded with the whole number that stands for 0."""
    if not any(pad):
        return x
    sizes = [n + 2 * p for n, p in zip(x.shape[1:-1], pad)]
    padded = np.full((len(x), *sizes, x.shape[-1]), zero, np.uint8)
    inner = tuple(slice(p, p + n) for n, p in zip(x.shape[1:-1], pad))
    padded[(slice(None), *inner)] = x
    return padded


def _add(part: np.ndarray, sums: np.ndarray) -> None:
    """Adds whole numbers that are written as float32."""
    flat = part.reshape(-1), sums.reshape(-1)
    threads.run_slices(loops.add_to_sums, flat)


def _outputs(
    sums: np.ndarray,
    scales: np.ndarray,
    row_sums: np.ndarray,
    zero: int,
    W: np.ndarray,
    W_scale: np.ndarray,
    W_zero: np.ndarray,
    b: np.ndarray | None,
) -> np.ndarray:
    """Returns what sums stand for, in their place.

    The arguments are those of ``loops.whole_numbers.from_sums``.
    """
    n_outputs = len(W)
    W_sums = np.empty(n_outputs, np.int32)
    threads.run_slices(loops.sums_of_rows, [W.reshape(n_outputs, -1), W_sums])
    threads.run_slices(
        loops.from_sums,
        [sums, scales, row_sums],
        zero,
        np.full(n_outputs, W_scale.reshape(-1), np.float32),
        np.full(n_outputs, W_zero.reshape(-1), np.int32),
        W_sums,
        np.zeros(n_outputs, np.float32) if b is None else np.ascontiguousarray(b),
    )
    return sums.view(np.float32)


def _sums(key: tuple, ways: list[Way], x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns the sums by the faster of two ways, and measures that first.

    Args:
        key: Shapes and geometry.
        ways: By whole numbers, and in float32; or the latter alone.
        x: The inputs.
        W: The weights.
    """
    if len(ways) == 1:
        return ways[0](x, W)
    if key not in _choices:
        # The first runs compile, and allocate.
        for way in ways:
            way(x, W)
        runs = [[_seconds(way, x, W) for way in ways] for _ in range(_N_RUNS)]
        _choices[key] = LayerChoice(*key, *(1e3 * min(each) for each in zip(*runs)))
    return ways[0 if _choices[key].is_whole else 1](x, W)


def _seconds(way: Way, x: np.ndarray, W: np.ndarray) -> float:
    start = time.perf_counter()
    way(x, W)
    return time.perf_counter() - start
