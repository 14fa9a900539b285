"""Loops that write gradients in fewer bits, and read them.

Blocks of ``block`` elements have a scale each, which follows from the largest magnitude
in them. Written is each value times ``share``, rounded to float32 first; the products
are finite. Decoding overwrites ``out``, or adds to it.
"""

import numpy as np
from numba import njit

from chainer_kernels.compiling import loop
from chainer_kernels.float8_bits import (
    e4m3_to_float,
    e5m2_to_float,
    float_to_e4m3,
    float_to_e5m2,
)
from chainer_kernels.float16_bits import float_to_half, half_to_float

F32, U32, I32 = np.float32, np.uint32, np.int32
ONE, ZERO = F32(1), F32(0)
# With four bits a block's largest magnitude is scaled to 7.
LEVELS_OF_4_BITS, PER_LEVEL_OF_4_BITS = F32(7), F32(1 / 7)

# The reciprocal of a magnitude below SMALL may overflow: LIFT multiplies it first.
SMALL, LIFT, LOWER = F32(2.0**-60), F32(2.0**66), F32(2.0**-66)
# A block's largest magnitude is scaled to 127, or to this power of two up to the next.
LEVELS, PER_LEVEL = F32(127), F32(1 / 127)
TOP_OF_E5M2, TOP_OF_E4M3 = 14, 7


@loop("void(f4[::1], f4, i8, f4[::1])")
def largest_of_blocks(values, share, block, largest):
    """Writes the largest magnitude of each block, times a number that is not negative.

    The result is infinity or NaN where a block contains one.
    """
    for b in range(largest.size):
        part = values[b * block : (b + 1) * block].view(np.int32)
        # Magnitudes have the order of their bits, and a maximum of integers runs in
        # vector instructions.
        most = I32(0)
        for i in range(part.size):
            magnitude = I32(part[i] & I32(0x7FFFFFFF))
            most = magnitude if magnitude > most else most
        largest[b : b + 1].view(np.int32)[0] = most
        # Rounding keeps the order: this is the largest of the products as well.
        largest[b] *= share


@njit(inline="always")
def _power_of_two(exponent):
    """Returns 2^exponent, for -126 to 127."""
    return U32(U32(exponent + 127) << U32(23)).view(F32)


@njit(inline="always")
def _scales(largest, top):
    """Returns powers of two: of a block to its largest in 2^top .. 2^(top+1), and back.

    There are two factors each way, one of them 1, because one scale may be out of
    float32's range.
    """
    lift = LIFT if largest < SMALL else ONE
    lower = LOWER if largest < SMALL else ONE
    exponent = np.int64(U32(F32(largest * lift).view(U32) >> U32(23))) - 127
    if exponent < -83:
        # Nothing but zeros.
        exponent = -83
    return lift, _power_of_two(top - exponent), _power_of_two(exponent - top), lower


@loop("void(f4[::1], f4, f4[::1], i8, u1[::1])")
def encode_int8(values, share, largest, block, codes):
    """Rounds to multiples of a block's largest magnitude by 127."""
    for b in range(largest.size):
        part = values[b * block : (b + 1) * block]
        out = codes[b * block : (b + 1) * block].view(np.int8)
        lift = LIFT if largest[b] < SMALL else ONE
        most = F32(largest[b] * lift)
        scale = F32(LEVELS / most) if most > ZERO else ZERO
        for i in range(part.size):
            out[i] = np.int8(np.rint(F32(F32(F32(part[i] * share) * lift) * scale)))


@loop("void(u1[::1], f4[::1], i8, f4[::1], b1)")
def decode_int8(codes, largest, block, out, add):
    """Reads what :func:`encode_int8` wrote."""
    for b in range(largest.size):
        part = codes[b * block : (b + 1) * block].view(np.int8)
        to = out[b * block : (b + 1) * block]
        if add:
            for i in range(part.size):
                to[i] += F32(F32(part[i]) * PER_LEVEL) * largest[b]
        else:
            for i in range(part.size):
                to[i] = F32(F32(part[i]) * PER_LEVEL) * largest[b]


@loop("void(f4[::1], f4, f4[::1], i8, u1[::1])")
def encode_e5m2(values, share, largest, block, codes):
    """Rounds to e5m2, scaled by a power of two."""
    for b in range(largest.size):
        part = values[b * block : (b + 1) * block]
        out = codes[b * block : (b + 1) * block]
        lift, scale, _, _ = _scales(largest[b], TOP_OF_E5M2)
        for i in range(part.size):
            out[i] = float_to_e5m2(F32(F32(part[i] * share) * lift), scale)


@loop("void(u1[::1], f4[::1], i8, f4[::1], b1)")
def decode_e5m2(codes, largest, block, out, add):
    """Reads what :func:`encode_e5m2` wrote."""
    for b in range(largest.size):
        part = codes[b * block : (b + 1) * block]
        to = out[b * block : (b + 1) * block]
        _, _, back, lower = _scales(largest[b], TOP_OF_E5M2)
        if add:
            for i in range(part.size):
                to[i] += F32(F32(e5m2_to_float(part[i]) * back) * lower)
        else:
            for i in range(part.size):
                to[i] = F32(F32(e5m2_to_float(part[i]) * back) * lower)


@loop("void(f4[::1], f4, f4[::1], i8, u1[::1])")
def encode_e4m3(values, share, largest, block, codes):
    """Rounds to e4m3, scaled by a power of two."""
    for b in range(largest.size):
        part = values[b * block : (b + 1) * block]
        out = codes[b * block : (b + 1) * block]
        lift, scale, _, _ = _scales(largest[b], TOP_OF_E4M3)
        for i in range(part.size):
            out[i] = float_to_e4m3(F32(F32(F32(part[i] * share) * lift) * scale))


@loop("void(u1[::1], f4[::1], i8, f4[::1], b1)")
def decode_e4m3(codes, largest, block, out, add):
    """Reads what :func:`encode_e4m3` wrote."""
    for b in range(largest.size):
        part = codes[b * block : (b + 1) * block]
        to = out[b * block : (b + 1) * block]
        _, _, back, lower = _scales(largest[b], TOP_OF_E4M3)
        if add:
            for i in range(part.size):
                to[i] += F32(F32(e4m3_to_float(part[i]) * back) * lower)
        else:
            for i in range(part.size):
                to[i] = F32(F32(e4m3_to_float(part[i]) * back) * lower)


@loop("void(f4[::1], f4, u2[::1])")
def encode_fp16(values, share, codes):
    """Rounds to float16; what is too large becomes its largest number."""
    for i in range(values.size):
        code = U32(float_to_half(F32(values[i] * share)))
        magnitude = U32(code & U32(0x7FFF))
        magnitude = U32(0x7BFF) if magnitude > U32(0x7BFF) else magnitude
        codes[i] = np.uint16(U32(code & U32(0x8000)) | magnitude)


@loop("void(u2[::1], f4[::1], b1)")
def decode_fp16(codes, out, add):
    """Reads what :func:`encode_fp16` wrote."""
    if add:
        for i in range(codes.size):
            out[i] += half_to_float(codes[i])
    else:
        for i in range(codes.size):
            out[i] = half_to_float(codes[i])


@loop("void(f4[::1], f4, u2[::1])")
def encode_bf16(values, share, codes):
    """Rounds to the upper half of a float32, ties to even; what is too large, down."""
    for i in range(values.size):
        bits = U32(F32(values[i] * share).view(U32))
        magnitude = U32(bits & U32(0x7FFFFFFF))
        odd = U32(U32(magnitude >> U32(16)) & U32(1))
        rounded = U32(U32(U32(magnitude + U32(0x7FFF)) + odd) >> U32(16))
        rounded = U32(0x7F7F) if rounded > U32(0x7F7F) else rounded
        codes[i] = np.uint16(rounded | U32(U32(bits >> U32(16)) & U32(0x8000)))


@loop("void(u2[::1], f4[::1], b1)")
def decode_bf16(codes, out, add):
    """Reads what :func:`encode_bf16` wrote."""
    if add:
        for i in range(codes.size):
            out[i] += U32(U32(codes[i]) << U32(16)).view(F32)
    else:
        for i in range(codes.size):
            out[i] = U32(U32(codes[i]) << U32(16)).view(F32)


@njit(inline="always")
def _code_of_4_bits(value, share, lift, scale):
    """Returns a level from -7 to 7 in four bits, of a uint32."""
    level = np.rint(F32(F32(F32(value * share) * lift) * scale))
    return U32(U32(I32(level)) & U32(15))


@njit(inline="always")
def _share_of_4_bits(code):
    """Returns the share of the largest magnitude that four bits of a uint32 mean."""
    return F32(F32(I32(U32(code ^ U32(8))) - I32(8)) * PER_LEVEL_OF_4_BITS)


@loop("void(f4[::1], f4, f4[::1], i8, u1[::1])")
def encode_int4(values, share, largest, block, codes):
    """Rounds to multiples of a block's largest magnitude by 7; blocks are even.

    A byte has two codes, the first one in its lower half.
    """
    for b in range(largest.size):
        part = values[b * block : (b + 1) * block]
        out = codes[b * block // 2 : (b + 1) * block // 2]
        lift = LIFT if largest[b] < SMALL else ONE
        most = F32(largest[b] * lift)
        scale = F32(LEVELS_OF_4_BITS / most) if most > ZERO else ZERO
        for i in range(part.size // 2):
            low = _code_of_4_bits(part[2 * i], share, lift, scale)
            high = _code_of_4_bits(part[2 * i + 1], share, lift, scale)
            out[i] = np.uint8(low | U32(high << U32(4)))
        if part.size % 2:
            last = _code_of_4_bits(part[part.size - 1], share, lift, scale)
            out[part.size // 2] = np.uint8(last)


@loop("void(u1[::1], f4[::1], i8, f4[::1], b1)")
def decode_int4(codes, largest, block, out, add):
    """Reads what :func:`encode_int4` wrote."""
    for b in range(largest.size):
        part = codes[b * block // 2 : (b + 1) * block // 2]
        to = out[b * block : (b + 1) * block]
        if add:
            for i in range(to.size // 2):
                code = U32(part[i])
                to[2 * i] += F32(_share_of_4_bits(code & U32(15)) * largest[b])
                to[2 * i + 1] += F32(_share_of_4_bits(code >> U32(4)) * largest[b])
        else:
            for i in range(to.size // 2):
                code = U32(part[i])
                to[2 * i] = F32(_share_of_4_bits(code & U32(15)) * largest[b])
                to[2 * i + 1] = F32(_share_of_4_bits(code >> U32(4)) * largest[b])
        if to.size % 2:
            code = U32(part[part.size - 1]) & U32(15)
            last = F32(_share_of_4_bits(code) * largest[b])
            to[to.size - 1] = F32(to[to.size - 1] + last) if add else last
