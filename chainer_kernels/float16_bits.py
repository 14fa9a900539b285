"""Float16 as bits, for Numba, which has no arithmetic for it on a CPU.

Every function is straight-line code without memory access or library call, so that
loops around them become vector instructions. Processors that have instructions for
float16 are made to use them; their results are the same. The layouts::

             sign  exponent  mantissa
    float32     1         8        23     e8m23
    float16     1         5        10     e5m10

Numba widens integers to 64 bits in every operation; the casts to 32 keep the loops at
full vector width.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.extending import intrinsic

U32 = np.uint32
F32 = np.float32


INFINITY = U32(0x7F800000)

# Exponents are biased by 127 in float32 and by 15 in the others.
REBIAS = U32((127 - 15) << 23)
# The smallest normal number of 5 exponent bits, 2^-14, and the first too large, 2^16.
SMALLEST_NORMAL = U32((127 - 14) << 23)
TOO_LARGE = U32((127 + 16) << 23)


@njit
def half_to_float_by_bits(half: int) -> float:
    """Converts the bits of a float16; exact."""
    sign = U32(U32(half & U32(0x8000)) << U32(16))
    magnitude = U32(U32(half & U32(0x7FFF)) << U32(13))
    bits = U32(magnitude + REBIAS)
    if magnitude >= U32(0x7C00 << 13):
        bits = U32(magnitude | INFINITY)
    if magnitude < U32(0x0400 << 13):
        # Subnormal: as the mantissa of a normal number, less that number's own 1.
        shifted = U32(magnitude + SMALLEST_NORMAL).view(F32)
        bits = F32(shifted - F32(2**-14)).view(U32)
    return U32(bits | sign).view(F32)


@njit
def float_to_half_by_bits(value: float) -> int:
    """Rounds a float32 to the nearest float16, ties to even; returns its bits."""
    bits = F32(value).view(U32)
    sign = U32(U32(bits >> U32(16)) & U32(0x8000))
    magnitude = U32(bits & U32(0x7FFFFFFF))
    odd = U32(U32(magnitude >> U32(13)) & U32(1))
    rounded = U32(U32(U32(magnitude - U32(REBIAS - U32(0xFFF))) + odd) >> U32(13))
    if magnitude < SMALLEST_NORMAL:
        # Next to 0.5 float32 is as coarse as subnormal float16, 2^-24: adding rounds.
        shifted = U32(magnitude).view(F32) + F32(0.5)
        rounded = U32(F32(shifted).view(U32) - U32(126 << 23))
    if magnitude >= TOO_LARGE:
        rounded = U32(0x7C00)
    if magnitude > INFINITY:
        rounded = U32(0x7E00)
    return np.uint16(rounded | sign)


@intrinsic
def half_to_float_by_instruction(context: Any, half: Any) -> Any:
    """Converts as :func:`half_to_float_by_bits`, with the processor's instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        bits = args[0]
        if bits.type.width > 16:
            bits = builder.trunc(bits, ir.IntType(16))
        return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())

    return types.float32(half), generate


@intrinsic
def float_to_half_by_instruction(context: Any, value: Any) -> Any:
    """Rounds as :func:`float_to_half_by_bits`, with the processor's instruction."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        half = builder.fptrunc(args[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return types.uint16(types.float32), generate


def _has_instructions() -> bool:
    """Whether the processor converts float16; otherwise LLVM would call a library."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    return bool(get_host_cpu_features().get("f16c", False))


if _has_instructions():
    half_to_float = half_to_float_by_instruction
    float_to_half = float_to_half_by_instruction
else:
    half_to_float = half_to_float_by_bits
    float_to_half = float_to_half_by_bits
