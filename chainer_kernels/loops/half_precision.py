"""Loops between float16, as bits, and float32."""

from chainer_kernels.compiling import loop
from chainer_kernels.float16_bits import float_to_half, half_to_float


@loop("void(u2[::1], f4[::1])")
def widen(halves, singles):
    """Converts float16 to float32."""
    for i in range(halves.size):
        singles[i] = half_to_float(halves[i])


@loop("void(f4[::1], u2[::1])")
def narrow(singles, halves):
    """Rounds float32 to float16; what exceeds it becomes infinite."""
    for i in range(singles.size):
        halves[i] = float_to_half(singles[i])
