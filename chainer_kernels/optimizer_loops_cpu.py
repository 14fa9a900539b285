"""The passes over flat buffers on a CPU, each one loop, compiled by Numba.

``optimizer_loops_gpu.py`` has the same public functions for CuPy. Gradients are read
where backward left them, by their addresses: a copy into a flat buffer would cost as
much as the sum of squares.

Arithmetic is that of the masters' dtype, operation by operation as in Chainer's update
rules on NumPy arrays, so that the weights are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic, overload

from chainer_kernels.float16_bits import (
    F32,
    U32,
    float_to_e5m2,
    float_to_half,
    half_to_float,
)

Array = Any

LARGEST_HALF = F32(np.finfo(np.float16).max)

_compiled = njit(cache=True, error_model="numpy")
# The order of additions is free, so that they run in vector instructions. It depends
# on the length only: the same parameter gives the same sum on every rank.
_reducing = njit(cache=True, error_model="numpy", fastmath={"reassoc"})


class Gradients(NamedTuple):
    """Gradients of parameters, wherever they are.

    Attributes:
        addresses: Of each parameter's, int64.
        starts: Where each parameter begins in the flat buffers.
        ends: Where each ends.
        like: An array of no elements: bits of float16, float32, or float64.
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
    dtype = arrays[0].dtype
    like = np.empty(0, np.uint16 if dtype == np.float16 else dtype)
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


@njit(cache=True)
def _array(gradients: Gradients, parameter: int) -> Array:
    """The gradient of one parameter."""
    n = gradients.ends[parameter] - gradients.starts[parameter]
    return carray(_pointer(gradients.addresses[parameter]), n, gradients.like.dtype)


def _unscaled(value: Any, inverse: float) -> float:
    """A gradient divided by the loss scale."""
    raise NotImplementedError("for compiled code")


# Numba compares the signatures, annotations included.
@overload(_unscaled, inline="always")
def _unscaled_by_dtype(value, inverse):  # type: ignore
    if value == types.uint16:
        return lambda value, inverse: F32(half_to_float(value) * inverse)
    return lambda value, inverse: value * inverse


@njit(cache=True)
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
            g = np.float64(_unscaled(value, inverse))
            total += g * g
        sums[p] = total


@_compiled
def unscale(gradients: Gradients, inverse: float, out: Array) -> None:
    """Writes the unscaled gradients into a flat buffer."""
    for p in range(gradients.starts.size):
        gradient = _array(gradients, p)
        unscaled = out[gradients.starts[p] : gradients.ends[p]]
        for i in range(gradient.size):
            unscaled[i] = _unscaled(gradient[i], inverse)


@_compiled
def sgd(
    gradients: Gradients,
    first: int,
    last: int,
    inverse: float,
    weights: Array,
    half: Array,
    lr: float,
) -> None:
    """Updates as :class:`chainer.optimizers.SGD`.

    Args:
        gradients: Of all parameters of a group.
        first: The first parameter to update.
        last: The last one.
        inverse: What gradients are multiplied by, of the weights' dtype.
        weights: Flat buffer of masters.
        half: Flat buffer of the float16 weights' bits, to round into; may be empty.
        lr: Learning rate, of the weights' dtype.
    """
    rounds = half.size > 0
    for p in range(first, last + 1):
        start, end = gradients.starts[p], gradients.ends[p]
        gradient = _array(gradients, p)
        w, h = weights[start:end], half[start:end]
        for i in range(gradient.size):
            weight = _current(F32(w[i]), h[i]) if rounds else w[i]
            weight -= lr * _unscaled(gradient[i], inverse)
            w[i] = weight
            if rounds:
                h[i] = float_to_half(F32(weight))


@_compiled
def momentum_sgd(
    gradients: Gradients,
    first: int,
    last: int,
    inverse: float,
    weights: Array,
    half: Array,
    velocity: Array,
    lr: float,
    momentum: float,
) -> None:
    """Updates as :class:`chainer.optimizers.MomentumSGD`; see :func:`sgd`."""
    rounds = half.size > 0
    for p in range(first, last + 1):
        start, end = gradients.starts[p], gradients.ends[p]
        gradient = _array(gradients, p)
        w, h, v = weights[start:end], half[start:end], velocity[start:end]
        for i in range(gradient.size):
            weight = _current(F32(w[i]), h[i]) if rounds else w[i]
            step = momentum * v[i] - lr * _unscaled(gradient[i], inverse)
            v[i] = step
            weight += step
            w[i] = weight
            if rounds:
                h[i] = float_to_half(F32(weight))


@_compiled
def adam(
    gradients: Gradients,
    first: int,
    last: int,
    inverse: float,
    weights: Array,
    half: Array,
    mean: Array,
    variance: Array,
    alpha_t: float,
    rate1: float,
    rate2: float,
    eps: float,
    keep: float,
    eta: float,
) -> None:
    """Updates as :class:`chainer.optimizers.Adam`; see :func:`sgd`.

    Args:
        gradients: Of all parameters of a group.
        first: The first parameter to update.
        last: The last one.
        inverse: What gradients are multiplied by.
        weights: Flat buffer of masters.
        half: Flat buffer of the float16 weights' bits.
        mean: Chainer's ``m``.
        variance: Chainer's ``v``.
        alpha_t: Learning rate with the bias correction.
        rate1: 1 - beta1.
        rate2: 1 - beta2.
        eps: Added to the root.
        keep: 1 - eta * weight decay.
        eta: Schedule multiplier.
    """
    rounds = half.size > 0
    for p in range(first, last + 1):
        start, end = gradients.starts[p], gradients.ends[p]
        gradient = _array(gradients, p)
        w, h = weights[start:end], half[start:end]
        m, v = mean[start:end], variance[start:end]
        for i in range(gradient.size):
            weight = _current(F32(w[i]), h[i]) if rounds else w[i]
            g = _unscaled(gradient[i], inverse)
            m[i] += rate1 * (g - m[i])
            v[i] += rate2 * (g * g - v[i])
            step = alpha_t / (np.sqrt(v[i]) + eps)
            weight = keep * weight - eta * (step * m[i])
            w[i] = weight
            if rounds:
                h[i] = float_to_half(F32(weight))


@_compiled
def momentum_sgd16(
    gradients: Gradients,
    first: int,
    last: int,
    inverse: float,
    weights: Array,
    half: Array,
    accumulated: Array,
    lr: float,
    momentum: float,
) -> None:
    """Updates as :class:`~mixed_precision.MomentumSGD16` with G in float16.

    Args:
        gradients: Of all parameters of a group.
        first: The first parameter to update.
        last: The last one.
        inverse: What gradients are multiplied by: G's scale over theirs.
        weights: Weights in float32; empty to update ``half`` itself.
        half: Bits of the float16 weights.
        accumulated: Bits of G times its scale.
        lr: Learning rate divided by G's scale.
        momentum: Momentum times what G's scale has changed by.
    """
    in_float32 = weights.size > 0
    for p in range(first, last + 1):
        start, end = gradients.starts[p], gradients.ends[p]
        gradient = _array(gradients, p)
        w, h, a = weights[start:end], half[start:end], accumulated[start:end]
        for i in range(gradient.size):
            g = F32(_unscaled(gradient[i], inverse))
            total = F32(momentum * half_to_float(a[i]) + g)
            # G is made of finite gradients and stays finite.
            a[i] = float_to_half(min(max(total, -LARGEST_HALF), LARGEST_HALF))
            step = F32(lr * half_to_float(a[i]))
            if in_float32:
                w[i] -= step
            else:
                h[i] = float_to_half(F32(half_to_float(h[i]) - step))


@_compiled
def accumulated_sgd(
    gradients: Gradients,
    first: int,
    last: int,
    inverse: float,
    weights: Array,
    half: Array,
    accumulated: Array,
    lr: float,
    momentum: float,
) -> None:
    """As :func:`momentum_sgd16`, for weights of float32 or float64; no ``half``."""
    for p in range(first, last + 1):
        start, end = gradients.starts[p], gradients.ends[p]
        gradient = _array(gradients, p)
        w, a = weights[start:end], accumulated[start:end]
        for i in range(gradient.size):
            a[i] = momentum * a[i] + _unscaled(gradient[i], inverse)
            w[i] -= lr * a[i]


_UPDATES = {
    "sgd": sgd,
    "momentum_sgd": momentum_sgd,
    "adam": adam,
    "momentum_sgd16": momentum_sgd16,
    "accumulated_sgd": accumulated_sgd,
}


def update(
    name: str,
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
        name: Of one of the loops above.
        gradients: Of all parameters of the group.
        span: The first and the last parameter to update.
        inverse: What gradients are multiplied by.
        weights: Flat buffer of masters; of no elements to update ``half`` itself.
        half: Flat buffer of float16 weights' bits; of no elements if there are none.
        states: Flat buffers, in the order of the loop's arguments.
        numbers: In the order of the loop's arguments.
    """
    loop = _UPDATES[name]
    loop(gradients, *span, inverse, weights, half, *states, *numbers)


@_compiled
def refresh(master: Array, half: Array) -> None:
    """Takes weights that somebody changed over into the masters."""
    for i in range(master.size):
        master[i] = _current(master[i], half[i])


@_compiled
def round_to_half(values: Array, half: Array) -> None:
    """Rounds float32 values to float16."""
    for i in range(values.size):
        half[i] = float_to_half(values[i])


@_compiled
def widen(half: Array, values: Array) -> None:
    """Converts float16 to float32."""
    for i in range(values.size):
        values[i] = half_to_float(half[i])


@_compiled
def encode_e5m2(values: Array, scale: float, codes: Array) -> None:
    """Rounds scaled float32 values to e5m2."""
    for i in range(values.size):
        codes[i] = float_to_e5m2(values[i], scale)


@_compiled
def encode_e5m2_half(half: Array, scale: float, codes: Array) -> None:
    """Rounds scaled float16 values to e5m2."""
    for i in range(half.size):
        codes[i] = float_to_e5m2(half_to_float(half[i]), scale)


@_compiled
def decode_e5m2(codes: Array, scale: float, values: Array) -> None:
    """Converts e5m2 to float32 and scales."""
    for i in range(codes.size):
        values[i] = half_to_float(U32(U32(codes[i]) << U32(8))) * scale


@_compiled
def decode_e5m2_half(codes: Array, scale: float, half: Array) -> None:
    """Converts e5m2 to float32, scales, and rounds to float16."""
    for i in range(codes.size):
        value = half_to_float(U32(U32(codes[i]) << U32(8))) * scale
        half[i] = float_to_half(F32(value))
