"""The loops of :mod:`.loops.wire` on a GPU, with the same bits: CUDA, compiled by CuPy.

A warp has a piece of a block, each of its lanes every 32nd element::

    block 0 of 600 elements            block 1
    [ 256 ][ 256 ][ 88 ]               [ 256 ][ ...
    warp 0  warp 1  warp 2              warp 3

Nothing here waits for the device.
"""

from __future__ import annotations

import functools
from string import Template
from typing import Any, NamedTuple

import numpy as np

Array = Any

_PIECE = 256
_THREADS = 256
_WARPS = _THREADS // 32


class _Format(NamedTuple):
    """How a wire dtype is written and read, in CUDA.

    Attributes:
        code: The type of a code.
        scale: The scale of a block, from its ``largest`` magnitude.
        encoded: The code of the scaled float ``x``.
        decoded: The float of ``code``, before it is scaled back.
    """

    code: str
    scale: str
    encoded: str
    decoded: str


#: Formats by wire dtype. Other wire dtypes are coded on the host.
FORMATS = {
    "fp16": _Format(
        "unsigned short",
        "Scale{1, 1, 1, 1}",
        "rounded<Code, 15, 10, 0x7bff>(x)",
        "widened<Code, 15, 10>(code)",
    ),
    "bf16": _Format(
        "unsigned short",
        "Scale{1, 1, 1, 1}",
        "rounded<Code, 127, 7, 0x7f7f>(x)",
        "widened<Code, 127, 7>(code)",
    ),
    "e5m2": _Format(
        "unsigned char",
        "power_of_two(largest, 14)",
        "rounded<Code, 15, 2, 0x7b>(x)",
        "widened<Code, 15, 2>(code)",
    ),
    "e4m3": _Format(
        "unsigned char",
        "power_of_two(largest, 7)",
        "rounded<Code, 7, 3, 0x7e>(x)",
        "widened<Code, 7, 3>(code)",
    ),
    "int8": _Format("signed char", "levels(largest)", "rintf(x)", "code"),
}

_COMMON = r"""
typedef unsigned long long Index;

__device__ float float_of(unsigned int bits) { return __uint_as_float(bits); }
__device__ unsigned int bits_of(float value) { return __float_as_uint(value); }

// CuPy compiles so that subnormal numbers count as zero in operators.
__device__ float times(float a, float b) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}
__device__ float plus(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}
// With one rounding.
__device__ float times_plus(float a, float b, float c) {
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
}

struct Piece { unsigned int block; Index start, stop; };

__device__ Piece piece_of_warp(Index n, Index block) {
    unsigned int warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    unsigned int per_block = (block + PIECE - 1) / PIECE;
    Piece piece;
    piece.block = warp / per_block;
    Index end = (piece.block + 1) * block;
    piece.start = piece.block * block + warp % per_block * PIECE;
    piece.stop = piece.start + PIECE;
    if (piece.stop > end) piece.stop = end;
    if (piece.stop > n) piece.stop = n;
    return piece;
}

// Numbers are multiplied by both of the first, and codes by both of the others.
struct Scale { float lift, there, back, lower; };

// What is smaller than 2^-60 has no reciprocal, and is multiplied by 2^66 before.
__device__ bool is_small(float largest) { return largest < float_of((127 - 60) << 23); }
__device__ float lift_of(float largest) {
    return is_small(largest) ? float_of((127 + 66) << 23) : 1;
}
__device__ float lower_of(float largest) {
    return is_small(largest) ? float_of((127 - 66) << 23) : 1;
}

// The largest magnitude becomes 127.
__device__ Scale levels(float largest) {
    float lift = lift_of(largest);
    float most = times(largest, lift);
    return Scale{lift, most > 0 ? 127.0f / most : 0, (float)(1.0 / 127), largest};
}

// The largest magnitude comes to lie in 2^top .. 2^(top+1).
__device__ Scale power_of_two(float largest, int top) {
    float lift = lift_of(largest);
    int exponent = (int)(bits_of(times(largest, lift)) >> 23) - 127;
    if (exponent < -83) exponent = -83;
    return Scale{lift, float_of((top - exponent + 127) << 23),
                 float_of((exponent - top + 127) << 23), lower_of(largest)};
}

// Rounds to a sign, an exponent and a mantissa, ties to even; saturates.
template <class Code, int BIAS, int MANTISSA, unsigned int MOST>
__device__ Code rounded(float value) {
    const int dropped = 23 - MANTISSA;
    const unsigned int rebias = (127 - BIAS) << 23;
    unsigned int magnitude = bits_of(value) & 0x7fffffffu;
    unsigned int odd = (magnitude >> dropped) & 1;
    unsigned int code =
        (magnitude - (rebias - ((1u << (dropped - 1)) - 1)) + odd) >> dropped;
    if (magnitude < rebias + (1u << 23)) {
        // Next to this float32 is as coarse as subnormal numbers: adding rounds.
        const unsigned int coarse = (127 + 24 - BIAS - MANTISSA) << 23;
        code = bits_of(plus(float_of(magnitude), float_of(coarse))) - coarse;
    }
    if (code > MOST) code = MOST;
    return code | (bits_of(value) >> 31) << (8 * sizeof(Code) - 1);
}

// The finite number that has such bits.
template <class Code, int BIAS, int MANTISSA>
__device__ float widened(Code code) {
    const int sign = 8 * sizeof(Code) - 1;
    unsigned int magnitude = code & ((1u << sign) - 1);
    // With the same small exponent, times what the biases differ by.
    float small = float_of(magnitude << (23 - MANTISSA));
    float value = times(small, float_of((254 - BIAS) << 23));
    return float_of(bits_of(value) | (unsigned int)(code >> sign) << 31);
}

extern "C" __global__ void largest_of_blocks(
    const float* values, Index n, Index block, float share, unsigned int* largest,
    bool has_scales, bool* is_finite
) {
    Piece piece = piece_of_warp(n, block);
    unsigned int lane = threadIdx.x % 32, most = 0;
    for (Index i = piece.start + lane; i < piece.stop; i += 32) {
        // Magnitudes have the order of their bits.
        most = max(most, bits_of(times(values[i], share)) & 0x7fffffffu);
    }
    for (int step = 16; step; step /= 2) {
        most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    if (lane == 0 && piece.start < n) {
        if (has_scales) atomicMax(&largest[piece.block], most);
        if (most >= 0x7f800000) *is_finite = false;
    }
}
"""

_CODING = r"""
extern "C" __global__ void encode_$name(
    const float* values, Index n, Index block, float share, float* scales,
    bool has_scales, const bool* is_finite, $code* codes
) {
    typedef $code Code;
    Piece piece = piece_of_warp(n, block);
    int lane = threadIdx.x % 32;
    if (piece.start >= n) return;
    if (!*is_finite) {
        for (Index i = piece.start + lane; i < piece.stop; i += 32) codes[i] = 0;
        if (has_scales && lane == 0) scales[piece.block] = 0;
        return;
    }
    float largest = has_scales ? scales[piece.block] : 0;
    Scale scale = $scale;
    for (Index i = piece.start + lane; i < piece.stop; i += 32) {
        float x = times(times(times(values[i], share), scale.lift), scale.there);
        codes[i] = $encoded;
    }
}

extern "C" __global__ void decode_$name(
    const $code* codes, Index n, Index block, const float* scales, bool has_scales,
    float* out, bool add
) {
    typedef $code Code;
    Piece piece = piece_of_warp(n, block);
    int lane = threadIdx.x % 32;
    if (piece.start >= n) return;
    float largest = has_scales ? scales[piece.block] : 0;
    Scale scale = $scale;
    for (Index i = piece.start + lane; i < piece.stop; i += 32) {
        Code code = codes[i];
        float value = times($decoded, scale.back);
        // Added in one rounding, as processors do that can.
        out[i] = add ? times_plus(value, scale.lower, out[i])
                     : times(value, scale.lower);
    }
}
"""


def source() -> str:
    """Returns the kernels in CUDA."""
    coding = Template(_CODING)
    parts = [f"#define PIECE {_PIECE}", _COMMON]
    parts += [
        coding.substitute(name=name, **each._asdict()) for name, each in FORMATS.items()
    ]
    return "\n".join(parts)


def write(
    name: str, values: Array, share: np.float32, block: int, scales: Array, codes: Array
) -> Array:
    """Writes scales and codes of numbers, times ``share``; zeros if one is not finite.

    Args:
        name: Name of the wire dtype, one of `FORMATS`.
        values: Contiguous float32 of CuPy, in one dimension.
        share: At least 0.
        block: How many elements have a scale.
        scales: Contiguous float32, one for each block; empty for a dtype without.
        codes: Contiguous, one for each element.

    Returns:
        Whether all are finite: one bool, on the device.
    """
    # Where there is no GPU it is mostly not installed.
    import cupy

    is_finite = cupy.ones((), np.bool_)
    n, has_scales = values.size, scales.size > 0
    block = block if has_scales else n
    if has_scales:
        scales.data.memset_async(0, scales.nbytes)
    of_blocks = np.uint64(n), np.uint64(block), share, scales, np.bool_(has_scales)
    _launch("largest_of_blocks", n, block, values, *of_blocks, is_finite)
    _launch(f"encode_{name}", n, block, values, *of_blocks, is_finite, codes)
    return is_finite


def read(
    name: str, codes: Array, scales: Array, block: int, out: Array, add: bool
) -> None:
    """Reads what :func:`write` wrote.

    Args:
        name: Name of the wire dtype, one of `FORMATS`.
        codes: Contiguous, of CuPy.
        scales: Contiguous, of CuPy.
        block: How many elements have a scale.
        out: Contiguous float32 to write to.
        add: Whether to add to ``out`` instead.
    """
    n, has_scales = codes.size, scales.size > 0
    block = block if has_scales else n
    of_blocks = np.uint64(n), np.uint64(block), scales, np.bool_(has_scales)
    _launch(f"decode_{name}", n, block, codes, *of_blocks, out, np.bool_(add))


def _launch(name: str, n: int, block: int, *args: Any) -> None:
    """Starts a kernel with a warp for each piece."""
    if n:
        n_pieces = -(-n // block) * -(-block // _PIECE)
        _kernel(name)((-(-n_pieces // _WARPS),), (_THREADS,), args)


@functools.cache
def _kernel(name: str) -> Any:
    return _module().get_function(name)


@functools.cache
def _module() -> Any:
    import cupy

    # Products and sums are rounded one by one, as on a CPU.
    return cupy.RawModule(code=source(), options=("--fmad=false",))
