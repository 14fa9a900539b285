"""Weight gradients that are accumulated without forming them first.

``Variable.backward`` makes an array for the weight gradient of each microbatch, and
adds it to the sum. BLAS adds a product to an array that is there at no extra cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer
import numpy
from chainer.functions.connection import linear

from divisible.backward.weight_gradients import WeightGradients

Array = Any


def _linear_in_place(
    function: linear.LinearFunction,
    parameters: dict[int, chainer.Parameter | None],
    gy: Array,
    weight_gradients: WeightGradients,
) -> tuple[int, ...]:
    """Accumulates the weight gradients of a linear layer by GEMM.

    Args:
        function: The function, of the inputs x (N, n_in), W (n_out, n_in) and b.
        parameters: For each input asked for the parameter, if it is one itself.
        gy: Output gradient of shape (N, n_out).
        weight_gradients: Where to add.

    Returns:
        The inputs that have been seen to; the others are left to ``backward``.
    """
    done = []
    multiplied = _for_gemm(gy)
    for i, parameter in parameters.items():
        if parameter is None or not _has_gemm(parameter.array, gy):
            continue
        if i == 1:
            x = function.inputs[0].data
            if not _has_gemm(x, gy):
                continue
            weight_gradients.add_product(parameter, multiplied.T, _for_gemm(x))
        elif i == 2:
            weight_gradients.add_sum(parameter, multiplied, axis=(0,))
        else:
            continue
        done.append(i)
    return tuple(done)


def _has_gemm(array: Array, gy: Array) -> bool:
    """Tells whether the two can be multiplied into an array that is there."""
    if array.dtype != gy.dtype or type(array) not in _GEMM_ARRAYS:
        return False
    # CuPy cannot add a product of float16 to float32.
    return gy.dtype.char in ("fde" if type(gy) is numpy.ndarray else "fd")


def _for_gemm(array: Array) -> Array:
    """Returns what BLAS multiplies; on a CPU it knows no float16."""
    if array.dtype.char == "e" and type(array) is numpy.ndarray:
        return array.astype(numpy.float32)
    return array


_GEMM_ARRAYS = (numpy.ndarray, chainer.backends.cuda.ndarray)

#: By the exact type of a function what sees to the gradients of some of its inputs. It
#: gets the function, by input the parameter asked for, the output gradient and where to
#: add; it returns the inputs that it has seen to, and leaves the others to `backward`.
IN_PLACE: dict[type, Callable[..., tuple[int, ...]]] = {
    linear.LinearFunction: _linear_in_place,
}
