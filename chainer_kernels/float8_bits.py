"""Floats of 8 bits as bits, for Numba, straight-line as :mod:`.float16_bits`.

::

             sign  exponent  mantissa
    e5m2        1         5         2     the upper byte of a float16; 57344 at most
    e4m3        1         4         3     has no infinity; 448 at most
"""

from __future__ import annotations

import numpy as np
from numba import njit

from chainer_kernels.float16_bits import (
    F32,
    INFINITY,
    REBIAS,
    SMALLEST_NORMAL,
    U32,
    float_to_half,
    half_to_float,
)

# Exponents of e4m3 are biased by 7. Its smallest normal number is 2^-6.
_REBIAS_E4M3 = U32((127 - 7) << 23)
_SMALLEST_E4M3 = U32((127 - 6) << 23)


@njit
def float_to_e5m2(value: float, scale: float) -> int:
    """Rounds ``value * scale`` to e5m2, ties to even; saturates; returns its bits."""
    original = U32(F32(value).view(U32) & U32(0x7FFFFFFF))
    bits = F32(value * scale).view(U32)
    sign = U32(U32(bits >> U32(24)) & U32(0x80))
    magnitude = U32(bits & U32(0x7FFFFFFF))
    odd = U32(U32(magnitude >> U32(21)) & U32(1))
    rounded = U32(U32(U32(magnitude - U32(REBIAS - U32(0xFFFFF))) + odd) >> U32(21))
    if magnitude < SMALLEST_NORMAL:
        # Next to 128 float32 is as coarse as subnormal e5m2, 2^-16.
        shifted = U32(magnitude).view(F32) + F32(128)
        rounded = U32(F32(shifted).view(U32) - U32((127 + 7) << 23))
    if rounded > U32(0x7B):
        rounded = U32(0x7B)
    # The unscaled value decides: a finite one that overflows when scaled saturates.
    if original >= INFINITY:
        rounded = U32(0x7C)
    if original > INFINITY:
        rounded = U32(0x7E)
    return np.uint8(rounded | sign)


@njit
def float_to_e5m2_truncated(value: float, scale: float) -> int:
    """Rounds to float16, and drops its lower byte; saturates; returns the bits."""
    original = U32(F32(value).view(U32) & U32(0x7FFFFFFF))
    half = U32(float_to_half(F32(value * scale)))
    code = U32(U32(half >> U32(8)) & U32(0x7F))
    if code > U32(0x7B):
        code = U32(0x7B)
    if original >= INFINITY:
        code = U32(0x7C)
    if original > INFINITY:
        code = U32(0x7E)
    return np.uint8(code | U32(U32(half >> U32(8)) & U32(0x80)))


@njit
def e5m2_to_float(code: int) -> float:
    """Converts the bits of an e5m2; exact."""
    return half_to_float(U32(U32(code) << U32(8)))


@njit
def float_to_e4m3(value: float) -> int:
    """Rounds a finite float32 to e4m3, ties to even; saturates; returns its bits."""
    bits = F32(value).view(U32)
    sign = U32(U32(bits >> U32(24)) & U32(0x80))
    magnitude = U32(bits & U32(0x7FFFFFFF))
    odd = U32(U32(magnitude >> U32(20)) & U32(1))
    rounded = U32(
        U32(U32(magnitude - U32(_REBIAS_E4M3 - U32(0x7FFFF))) + odd) >> U32(20)
    )
    if magnitude < _SMALLEST_E4M3:
        # Next to 2^14 float32 is as coarse as subnormal e4m3, 2^-9.
        shifted = U32(magnitude).view(F32) + F32(2**14)
        rounded = U32(F32(shifted).view(U32) - U32((127 + 14) << 23))
    if rounded > U32(0x7E):
        rounded = U32(0x7E)
    return np.uint8(rounded | sign)


@njit
def e4m3_to_float(code: int) -> float:
    """Converts the bits of a finite e4m3; exact."""
    sign = U32(U32(code & U32(0x80)) << U32(24))
    # The bits are read as a float32 with the same exponent field; the factor makes up
    # for the different biases.
    value = F32(U32(U32(code & U32(0x7F)) << U32(20)).view(F32) * F32(2.0**120))
    return U32(value.view(U32) | sign).view(F32)
