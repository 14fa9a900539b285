"""The passes over flat buffers on a CPU, each one loop, compiled by Numba.

``optimizer_loops_gpu.py`` has the same public functions for CuPy. Numba has no float16
on a CPU and is given the bits. Gradients are read where backward left them, by their
addresses: a copy into a flat buffer would cost as much as the sum of squares.

Arithmetic is that of the masters' dtype. Operations are those of Chainer's update rules
on NumPy arrays, in the same order. So the weights are the same bit for bit.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic, overload

from chainer_kernels import threads, update_rules
from chainer_kernels.compiling import Loop, njit
from chainer_kernels.float8_bits import float_to_e5m2, float_to_e5m2_truncated
from chainer_kernels.float16_bits import (
    U32,
    float_to_half,
    half_to_float,
)
from chainer_kernels.formulas import Formula, number_names, state_names

Array = Any

_HALF = np.dtype(np.float16)


def _bits(value: Any) -> Any:
    is_half = isinstance(value, np.ndarray) and value.dtype == _HALF
    return value.view(np.uint16) if is_half else value


_compiled = njit(error_model="numpy", nogil=True)
# The order of additions is free, so that they run in vector instructions. The order
# depends on the length only: the same parameter gives the same sum on every rank.
_reducing = njit(error_model="numpy", fastmath={"reassoc"})


def _compiled_for_arrays(function: Callable) -> Callable:
    """Compiles a loop over arrays of which some may be float16."""
    loop = _compiled(function)

    @functools.wraps(function)
    def call(*arrays: Any) -> None:
        loop(*map(_bits, arrays))

    return call


class Gradients(NamedTuple):
    """Gradients of parameters, wherever they are.

    Attributes:
        addresses: Address of each parameter's gradient, int64.
        starts: Where each parameter begins in the flat buffers.
        ends: Where each ends.
        like: An array of their dtype, bits for float16, of no elements.
    """

    addresses: Array
    starts: Array
    ends: Array
    like: Array


def gathered(arrays: Sequence[Array], starts: Array, ends: Array) -> Gradients:
    """Returns the gradients of a group of parameters.

    Args:
        arrays: Contiguous arrays of one dtype, to be kept as long as the result.
        starts: Where each parameter begins in the flat buffers.
        ends: Where each ends.
    """
    addresses = [a.__array_interface__["data"][0] for a in arrays]
    like = _bits(np.empty(0, arrays[0].dtype))
    return Gradients(np.array(addresses, dtype=np.int64), starts, ends, like)


def in_buffer(flat: Array, starts: Array, ends: Array) -> Gradients:
    """Returns the gradients that are in a flat buffer."""
    address = flat.__array_interface__["data"][0]
    return Gradients(address + starts * flat.itemsize, starts, ends, flat[:0])


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@njit()
def _array(gradients: Gradients, parameter: int) -> Array:
    """The gradient of one parameter."""
    n = gradients.ends[parameter] - gradients.starts[parameter]
    return carray(_pointer(gradients.addresses[parameter]), n, gradients.like.dtype)


# Numba compares the signatures, annotations included.
def _number(value):  # type: ignore
    """An element of an array as a number: float16 as float32."""


def _element(value, array):  # type: ignore
    """A number as an element of an array, of float16 or not."""


@overload(_number, inline="always")
def _number_of(value):  # type: ignore
    if value == types.uint16:
        return lambda value: half_to_float(value)
    return lambda value: value


@overload(_element, inline="always")
def _element_of(value, array):  # type: ignore
    if array.dtype == types.uint16:
        return lambda value, array: float_to_half(value)
    return lambda value, array: value


@njit()
def _current(master: float, half: int) -> float:
    """The master, unless somebody changed the weight since it was rounded from it."""
    if float_to_half(master) != half:
        master = half_to_float(half)
    return master


@_reducing
def sum_squares(gradients: Gradients, inverse: float, sums: Array) -> None:
    """Sums for each parameter the squares of its unscaled gradients, in float64.

    A sum is not finite if one of the gradients is not. Else it is, unless there are
    float64 gradients from 1e154 on: squares of float32 numbers do not overflow.
    """
    for p in range(gradients.starts.size):
        total = 0.0
        for value in _array(gradients, p):
            g = np.float64(_number(value) * inverse)
            total += g * g
        sums[p] = total


@_compiled
def unscale(gradients: Gradients, inverse: float, out: Array) -> None:
    """Writes the unscaled gradients into a flat buffer."""
    for p in range(gradients.starts.size):
        gradient = _array(gradients, p)
        unscaled = out[gradients.starts[p] : gradients.ends[p]]
        for i in range(gradient.size):
            unscaled[i] = _number(gradient[i]) * inverse


# Expressions for a weight in the loop of a formula, by whether there are masters and
# whether there are float16 weights.
_WEIGHT = {
    (True, True): "current(weights_[i], half_[i])",
    (True, False): "weights_[i]",
    (False, True): "half_to_float(half_[i])",
}


@functools.cache
def _loop(formula: Formula, has_weights: bool, has_half: bool) -> Callable:
    """Makes the compiled loop of a formula.

    For :func:`~chainer_kernels.update_rules.momentum_sgd` and float16 weights with
    masters it is::

        def momentum_sgd(gradients, first, last, inverse, weights, half, v, numbers):
            for p in range(first, last + 1):
                start, end = gradients.starts[p], gradients.ends[p]
                gradient = array(gradients, p)
                weights_ = weights[start:end]
                half_ = half[start:end]
                v_ = v[start:end]
                for i in range(gradient.size):
                    weight, v_[i] = formula(
                        current(weights_[i], half_[i]),
                        number(gradient[i]) * inverse, v_[i], *numbers
                    )
                    weights_[i] = weight
                    half_[i] = float_to_half(weight)
    """
    # Numba's cache identifies a loop by its name and the formula's file. Numba treats
    # the loop as a part of that file: errors point there, and a changed file is
    # compiled again.
    name = formula.__name__
    states = state_names(formula)
    buffers = ["weights"] * has_weights + ["half"] * has_half + [*states]
    arguments = ["gradients, first, last, inverse, weights, half", *states, "numbers"]
    values = [
        _WEIGHT[has_weights, has_half],
        "number(gradient[i]) * inverse",
        *(f"{name}_[i]" for name in states),
        "*numbers",
    ]
    results = ", ".join(["weight", *(f"{name}_[i]" for name in states)])
    lines = [
        f"def {name}({', '.join(arguments)}):",
        "  for p in range(first, last + 1):",
        "    start, end = gradients.starts[p], gradients.ends[p]",
        "    gradient = array(gradients, p)",
        *(f"    {name}_ = {name}[start:end]" for name in buffers),
        "    for i in range(gradient.size):",
        f"      {results} = formula({', '.join(values)})",
        "      weights_[i] = weight" if has_weights else "",
        "      half_[i] = float_to_half(weight)" if has_half else "",
    ]
    names = {
        "array": _array,
        "number": _number,
        "current": _current,
        "half_to_float": half_to_float,
        "float_to_half": float_to_half,
    }
    return _compiled(_written(formula, name, lines, names))


@functools.cache
def array_loop(formula: Formula) -> Loop:
    """Makes the loop of a formula over the float32 arrays of one parameter.

    For :func:`~chainer_kernels.update_rules.momentum_sgd` it is::

        def momentum_sgd_arrays(weight_, gradient_, v_, lr, momentum):
            for i in range(weight_.size):
                weight_[i], v_[i] = formula(
                    weight_[i], gradient_[i], v_[i], lr, momentum
                )
    """
    name = f"{formula.__name__}_arrays"
    states, numbers = state_names(formula), number_names(formula)
    arrays = [f"{each}_" for each in ("weight", "gradient", *states)]
    elements = [f"{each}[i]" for each in arrays]
    results = ", ".join([elements[0], *elements[2:]])
    lines = [
        f"def {name}({', '.join([*arrays, *numbers])}):",
        "  for i in range(weight_.size):",
        f"    {results} = formula({', '.join([*elements, *numbers])})",
    ]
    types_ = ["f4[::1]"] * len(arrays) + ["f4"] * len(numbers)
    function = _written(formula, name, lines, {})
    return Loop(function, f"void({', '.join(types_)})", is_exact=True)


def _written(
    formula: Formula, name: str, lines: Sequence[str], names: dict[str, Any]
) -> Callable:
    """Returns the loop of a formula that is written in some lines."""
    source = ast.increment_lineno(
        ast.parse("\n".join(lines)), formula.__code__.co_firstlineno - 1
    )
    names["__name__"] = __name__
    names["formula"] = numba.njit(error_model="numpy")(formula)
    exec(compile(source, inspect.getsourcefile(formula), "exec"), names)
    return names[name]


@overload(update_rules.from_half)
def _from_half(bits):  # type: ignore
    return lambda bits: half_to_float(bits)


@overload(update_rules.to_half)
def _to_half(value):  # type: ignore
    return lambda value: float_to_half(value)


def update(
    formula: Formula,
    gradients: Gradients,
    span: tuple[int, int],
    inverse: float,
    weights: Array,
    half: Array,
    states: Sequence[Array],
    numbers: Sequence[float],
) -> None:
    """Updates parameters of a group.

    Args:
        formula: One of ``update_rules``, or of that form.
        gradients: Gradients of all parameters of the group.
        span: The first and the last parameter to update.
        inverse: Factor of the gradients, of the weights' dtype.
        weights: Flat buffer of masters; of no elements to update ``half`` itself.
        half: Flat buffer of the float16 weights, to round into; of no elements if there
            are none.
        states: Flat buffers, in the order of the formula's arguments.
        numbers: In the order of the formula's arguments, of the weights' dtype.
    """
    loop = _loop(formula, weights.size > 0, half.size > 0)
    buffers = weights, _bits(half), *map(_bits, states)
    loop(gradients, *span, inverse, *buffers, tuple(numbers))


def update_arrays(
    formula: Formula, arrays: Sequence[Array], numbers: Sequence[float]
) -> None:
    """Updates one parameter.

    Args:
        formula: One of ``update_rules``, or of that form.
        arrays: The weight, its gradient and the states, contiguous, of float32 and one
            dimension.
        numbers: In the order of the formula's arguments, of float32.
    """
    threads.run_slices(array_loop(formula), arrays, *numbers)


@_compiled_for_arrays
def refresh(master: Array, half: Array) -> None:
    """Takes weights that somebody changed over into the masters."""
    for i in range(master.size):
        master[i] = _current(master[i], half[i])


@_compiled_for_arrays
def convert(values: Array, out: Array) -> None:
    """Converts float16 to float32, or rounds float32 to float16."""
    for i in range(values.size):
        out[i] = _element(_number(values[i]), out)


@_compiled_for_arrays
def encode_e5m2(values: Array, scale: float, codes: Array) -> None:
    """Rounds scaled float32 or float16 values to e5m2."""
    for i in range(values.size):
        codes[i] = float_to_e5m2(_number(values[i]), scale)


@_compiled_for_arrays
def encode_e5m2_truncated(values: Array, scale: float, codes: Array) -> None:
    """Rounds scaled values to float16, and drops the lower byte."""
    for i in range(values.size):
        codes[i] = float_to_e5m2_truncated(_number(values[i]), scale)


@_compiled_for_arrays
def decode_e5m2(codes: Array, scale: float, values: Array) -> None:
    """Converts e5m2 to float32, scales, and rounds to float16 if values are that."""
    for i in range(codes.size):
        value = half_to_float(U32(U32(codes[i]) << U32(8))) * scale
        values[i] = _element(value, values)
