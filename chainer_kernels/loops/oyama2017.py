"""Loops of Algorithm 1 of Oyama et al.: each is one pass over what it reads and writes.

::

    encode_ratios    gradient, weights ---> codes       lines 9 and 15
    add_codes        codes, codes ---> the first ones   the sums of lines 19 and 21
    decode_ratios    codes, weights ---> mean           lines 25 and 26

The bits are those of the steps one after the other. Codes are e5m2.
"""

import numpy as np
from numba import njit

from chainer_kernels.compiling import loop
from chainer_kernels.float8_bits import (
    e5m2_to_float,
    float_to_e5m2,
    float_to_e5m2_truncated,
)
from chainer_kernels.float16_bits import INFINITY

F32, U32 = np.float32, np.uint32
ONE = F32(1)
# The bits of the largest float32, and those of the sign and of the magnitude.
MOST, SIGN, MAGNITUDE = U32(0x7F7FFFFF), U32(0x80000000), U32(0x7FFFFFFF)


@njit(inline="always")
def _ratio(gradient, weight, epsilon):
    """Returns the ratio; it saturates if the gradient is finite."""
    bits = F32(gradient / F32(F32(abs(weight)) + epsilon)).view(U32)
    is_finite = U32(F32(gradient).view(U32) & MAGNITUDE) < INFINITY
    if U32(bits & MAGNITUDE) == INFINITY and is_finite:
        bits = U32(U32(bits & SIGN) | MOST)
    return U32(bits).view(F32)


@loop("void(f4[::1], f4[::1], f4, f4, b1, u1[::1])")
def encode_ratios(gradient, weights, epsilon, scale, truncates, codes):
    """Rounds the scaled ratios ``gradient / (|weights| + epsilon)``."""
    if truncates:
        for i in range(gradient.size):
            ratio = _ratio(gradient[i], weights[i], epsilon)
            codes[i] = float_to_e5m2_truncated(ratio, scale)
    else:
        for i in range(gradient.size):
            ratio = _ratio(gradient[i], weights[i], epsilon)
            codes[i] = float_to_e5m2(ratio, scale)


@loop("void(u1[::1], u1[::1], b1)")
def add_codes(codes, others, truncates):
    """Adds to codes: decodes, adds up in float32, and rounds.

    A third array would be checked for an overlap with the first, and an overlap ends
    the vector instructions.
    """
    if truncates:
        for i in range(codes.size):
            total = F32(e5m2_to_float(codes[i]) + e5m2_to_float(others[i]))
            codes[i] = float_to_e5m2_truncated(total, ONE)
    else:
        for i in range(codes.size):
            total = F32(e5m2_to_float(codes[i]) + e5m2_to_float(others[i]))
            codes[i] = float_to_e5m2(total, ONE)


@loop("void(u1[::1], f4[::1], f4, f4, f4[::1])")
def decode_ratios(codes, weights, epsilon, scale, out):
    """Multiplies scaled ratios by ``|weights| + epsilon``."""
    for i in range(codes.size):
        size = F32(F32(abs(weights[i])) + epsilon)
        out[i] = F32(F32(e5m2_to_float(codes[i]) * scale) * size)
