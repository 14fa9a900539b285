"""Linear functions of inputs and weights of 8 bits, added up as whole numbers.

::

    x float32 -to_whole-> q uint8 -q @ W.T-> sums int32 -from_sums-> y float32

The product is one of whole numbers where the processor has instructions for these, or
some in float32, each of so few numbers that no sum is rounded. The bits are the same,
so that ranks and runs may choose as they measure. The first call with a shape does.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from chainer_kernels import threads
from chainer_kernels.loops import whole_numbers as loops
from chainer_kernels.providers import active, whole_numbers

#: Inputs of a product in float32: sums of products of 255 and 128 stay below 2^24.
_EXACT = 512
#: Inputs with which the sums of products of 255 and 255 stay below 2^31.
_MOST_INPUTS = 1 << 15
#: Of so many runs each the fastest counts; those before them compile and allocate.
_N_RUNS = 3


class Inputs(NamedTuple):
    """How inputs are written: ``scale (q - zero)``, q from 0 to ``highest``."""

    scale: float
    zero: int
    highest: int


class Weights(NamedTuple):
    """Weights as whole numbers: ``scale (whole - zero)``.

    Attributes:
        whole: (O, I), int8 or uint8.
        scale: float32, for each output or for all: (O, 1) or (1, 1).
        zero: The whole number that stands for 0, likewise.
    """

    whole: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


class Choice(NamedTuple):
    """How a shape is computed.

    Attributes:
        n_rows: The shape: samples,
        n_inputs: inputs of each,
        n_outputs: and outputs.
        ms_whole: Milliseconds of the product of whole numbers.
        ms_float32: Of the products in float32, with the weights made float32 for them.
    """

    n_rows: int
    n_inputs: int
    n_outputs: int
    ms_whole: float
    ms_float32: float

    @property
    def is_whole(self) -> bool:
        """Whether the product of whole numbers was faster, and is used."""
        return self.ms_whole < self.ms_float32


#: What was measured, by shape.
_choices: dict[tuple[int, int, int], Choice] = {}


def choices() -> list[Choice]:
    """Returns what was measured in this process, in that order."""
    return list(_choices.values())


def is_offered(n_inputs: int) -> bool:
    """Says whether :func:`linear` may be faster than other ways, for any samples."""
    return n_inputs <= _MOST_INPUTS and whole_numbers.instructions() is not None


def linear(
    x: np.ndarray, inputs: Inputs, weights: Weights, b: np.ndarray | None
) -> np.ndarray:
    """Returns what a linear function gives for inputs rounded to 8 bits.

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
    n_rows, n_outputs = len(x), len(weights.whole)
    whole = np.empty(x.shape, np.uint8)
    scales, row_sums = np.empty(n_rows, np.float32), np.empty(n_rows, np.int32)
    threads.run_slices(
        loops.to_whole,
        [x, whole, scales, row_sums],
        *(np.float32(inputs.scale), inputs.zero, inputs.highest),
    )
    W, W_zero = _signed(weights)
    sums, W_sums = _sums(whole, W), np.empty(n_outputs, np.int32)
    threads.run_slices(loops.sums_of_rows, [W, W_sums])
    y = np.empty((n_rows, n_outputs), np.float32)
    threads.run_slices(
        loops.from_sums,
        [sums, scales, row_sums, y],
        inputs.zero,
        _each(weights.scale, n_outputs, np.float32),
        _each(W_zero, n_outputs, np.int32),
        W_sums,
        np.zeros(n_outputs, np.float32) if b is None else np.ascontiguousarray(b),
    )
    return y


def _signed(weights: Weights) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights as int8, and what stands for 0 among them."""
    whole = np.ascontiguousarray(weights.whole)
    if whole.dtype == np.int8:
        return whole, weights.zero
    return (whole ^ np.uint8(128)).view(np.int8), weights.zero - 128


def _each(values: np.ndarray, n: int, dtype: type) -> np.ndarray:
    """Returns a value for each output."""
    return np.full(n, values.reshape(-1), dtype)


def _sums(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T`` by what is faster, and measures that first."""
    shape = (*x.shape, len(W))
    if not whole_numbers.has_product(*shape):
        return product_in_float32(x, W)
    if shape not in _choices:
        _choices[shape] = _measured(x, W)
    is_whole = _choices[shape].is_whole
    return (whole_numbers.product if is_whole else product_in_float32)(x, W)


def product_in_float32(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T``, int32, by exact products in float32.

    Args:
        x: (N, I), uint8.
        W: (O, I), int8.
    """
    sums = np.zeros((len(x), len(W)), np.int32)
    left, right = x.astype(np.float32), W.astype(np.float32)
    for start in range(0, x.shape[1], _EXACT):
        here = slice(start, start + _EXACT)
        part = active().product(left[:, here], right[:, here].T)
        threads.run_slices(loops.add_to_sums, [part.reshape(-1), sums.reshape(-1)])
    return sums


def _measured(x: np.ndarray, W: np.ndarray) -> Choice:
    """Computes both ways in turn, and returns how long they take."""
    ways = [
        functools.partial(compute, x, W)
        for compute in (whole_numbers.product, product_in_float32)
    ]
    for way in ways:
        way()
    runs = [[_seconds(way) for way in ways] for _ in range(_N_RUNS)]
    return Choice(*x.shape, len(W), *(1e3 * min(each) for each in zip(*runs)))


def _seconds(way: Callable[[], np.ndarray]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start
