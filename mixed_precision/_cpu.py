"""The passes over flat buffers on a CPU, each one loop, compiled by Numba.

``_gpu.py`` has the same functions for CuPy. A ``half`` is the bits of a float16 array,
as uint16; one of no elements stands for a buffer that is not there.

Arithmetic is that of the buffers' dtype, operation by operation as in Chainer's update
rules on NumPy arrays, so that the weights are the same bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mixed_precision._bits import (
    F32,
    U32,
    float_to_e5m2,
    float_to_half,
    half_to_float,
)

Array = Any

_compiled = njit(cache=True, error_model="numpy")
# The order of additions is free, so that they run in vector instructions. It depends
# on the length only: the same parameter gives the same sum on every rank.
_reducing = njit(cache=True, error_model="numpy", fastmath={"reassoc"})


@_reducing
def unscale_half(
    scaled: Array,
    inverse: float,
    gradients: Array,
    half: Array,
    master: Array,
    starts: Array,
    ends: Array,
    sums: Array,
) -> None:
    """Unscales float16 gradients into float32 and sums their squares.

    A weight that somebody changed since it was rounded from its master is taken over
    into the master. A sum is not finite if and only if one of its gradients is not:
    squares of float32 numbers do not overflow float64.

    Args:
        scaled: Bits of the float16 gradients.
        inverse: One over the loss scale, float32.
        gradients: Float32, written.
        half: Bits of the float16 weights.
        master: Float32 master weights; may be empty.
        starts: Where each parameter begins.
        ends: Where each parameter ends.
        sums: One float64 for each parameter, written.
    """
    has_master = master.size > 0
    for parameter in range(starts.size):
        total = 0.0
        for i in range(starts[parameter], ends[parameter]):
            gradient = F32(half_to_float(scaled[i]) * inverse)
            gradients[i] = gradient
            total += np.float64(gradient) * np.float64(gradient)
            if has_master and float_to_half(master[i]) != half[i]:
                master[i] = half_to_float(half[i])
        sums[parameter] = total


@_reducing
def unscale(
    gradients: Array, inverse: float, starts: Array, ends: Array, sums: Array
) -> None:
    """Unscales gradients of the master weights' dtype in place; sums their squares."""
    for parameter in range(starts.size):
        total = 0.0
        for i in range(starts[parameter], ends[parameter]):
            gradient = gradients[i] * inverse
            gradients[i] = gradient
            total += np.float64(gradient) * np.float64(gradient)
        sums[parameter] = total


@_compiled
def sgd(weights: Array, gradients: Array, half: Array, lr: float) -> None:
    """Updates as :class:`chainer.optimizers.SGD`; rounds into ``half``."""
    rounds = half.size > 0
    for i in range(weights.size):
        weight = weights[i] - lr * gradients[i]
        weights[i] = weight
        if rounds:
            half[i] = float_to_half(F32(weight))


@_compiled
def momentum_sgd(
    weights: Array,
    gradients: Array,
    half: Array,
    velocity: Array,
    lr: float,
    momentum: float,
) -> None:
    """Updates as :class:`chainer.optimizers.MomentumSGD`; rounds into ``half``."""
    rounds = half.size > 0
    for i in range(weights.size):
        v = momentum * velocity[i] - lr * gradients[i]
        velocity[i] = v
        weight = weights[i] + v
        weights[i] = weight
        if rounds:
            half[i] = float_to_half(F32(weight))


@_compiled
def adam(
    weights: Array,
    gradients: Array,
    half: Array,
    first: Array,
    second: Array,
    alpha_t: float,
    rate1: float,
    rate2: float,
    eps: float,
    keep: float,
    eta: float,
) -> None:
    """Updates as :class:`chainer.optimizers.Adam`; rounds into ``half``.

    Args:
        weights: Master weights.
        gradients: Unscaled gradients.
        half: Bits of the float16 weights.
        first: First moment, Chainer's ``m``.
        second: Second moment, Chainer's ``v``.
        alpha_t: Learning rate with the bias correction.
        rate1: 1 - beta1.
        rate2: 1 - beta2.
        eps: Added to the root.
        keep: 1 - eta * weight decay.
        eta: Schedule multiplier.
    """
    rounds = half.size > 0
    for i in range(weights.size):
        gradient = gradients[i]
        m = first[i] + rate1 * (gradient - first[i])
        v = second[i] + rate2 * (gradient * gradient - second[i])
        first[i] = m
        second[i] = v
        step = alpha_t / (np.sqrt(v) + eps)
        weight = keep * weights[i] - eta * (step * m)
        weights[i] = weight
        if rounds:
            half[i] = float_to_half(F32(weight))


@_compiled
def momentum_sgd16(
    weights: Array,
    gradients: Array,
    half: Array,
    accumulated: Array,
    lr: float,
    momentum: float,
) -> None:
    """Updates float16 weights with float16 accumulated gradients.

    Each is rounded once.

    Args:
        weights: Float32 weights to update; empty to update ``half`` itself.
        gradients: Float32 gradients.
        half: Bits of the float16 weights.
        accumulated: Bits of the float16 G of the equations.
        lr: Learning rate, float32.
        momentum: Momentum, float32.
    """
    in_float32 = weights.size > 0
    for i in range(half.size):
        rounded = float_to_half(
            F32(momentum * half_to_float(accumulated[i]) + gradients[i])
        )
        accumulated[i] = rounded
        weight = weights[i] if in_float32 else half_to_float(half[i])
        weight = F32(weight - lr * half_to_float(rounded))
        if in_float32:
            weights[i] = weight
        half[i] = float_to_half(weight)


@_compiled
def accumulated_sgd(
    weights: Array, gradients: Array, accumulated: Array, lr: float, momentum: float
) -> None:
    """As :func:`momentum_sgd16`, for weights of float32 or float64."""
    for i in range(weights.size):
        g = momentum * accumulated[i] + gradients[i]
        accumulated[i] = g
        weights[i] -= lr * g


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
