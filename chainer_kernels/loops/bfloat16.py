"""Loops that round float32 to bfloat16, its upper half; ties to even."""

import numpy as np

from chainer_kernels.compiling import loop

F32, U16, U32 = np.float32, np.uint16, np.uint32


@loop("void(u4[::1], u2[::1])")
def narrow(values, codes):
    """Rounds float32, as bits, to bfloat16, as bits."""
    for i in range(values.size):
        bits = values[i]
        odd = U32(U32(bits >> U32(16)) & U32(1))
        rounded = U32(U32(U32(bits + U32(0x7FFF)) + odd) >> U32(16))
        # The carry would turn some NaN into a number.
        is_nan = U32(bits & U32(0x7FFFFFFF)) > U32(0x7F800000)
        codes[i] = U16(U32(bits >> U32(16)) | U32(0x40) if is_nan else rounded)


@loop("void(u4[::1], u4[::1])")
def round_bits(values, rounded):
    """Rounds float32, as bits, to numbers that bfloat16 has as well."""
    for i in range(values.size):
        bits = values[i]
        odd = U32(U32(bits >> U32(16)) & U32(1))
        near = U32(U32(U32(bits + U32(0x7FFF)) + odd) & U32(0xFFFF0000))
        is_nan = U32(bits & U32(0x7FFFFFFF)) > U32(0x7F800000)
        rounded[i] = U32(bits | U32(0x400000)) if is_nan else near


@loop("void(u2[::1], u4[::1])")
def widen(codes, values):
    """Converts bfloat16 to float32, both as bits."""
    for i in range(codes.size):
        values[i] = U32(codes[i]) << U32(16)
