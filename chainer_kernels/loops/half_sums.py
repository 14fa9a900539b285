"""Products of float16 matrices, as bits, whose sums are float16."""

from chainer_kernels.compiling import loop
from chainer_kernels.float16_bits import float_to_half, half_to_float


@loop("void(f4[:,::1], f4[:,::1], f4[::1], u2[:,::1])")
def multiply(a, b, row, out):
    """Multiplies two matrices, and rounds to float16 after each addition.

    A product of two float16 numbers is exact in float32. The sum is rounded to float32
    and then to float16. If the float32 number is in the middle of two float16 numbers,
    a GPU may choose the other one.

    Args:
        a: (m, k), float16 numbers in float32.
        b: (k, n), float16 numbers in float32.
        row: n numbers, the sums of a row of the result.
        out: (m, n), the bits of the result.
    """
    for i in range(a.shape[0]):
        row[:] = 0
        for k in range(a.shape[1]):
            factor = a[i, k]
            for j in range(b.shape[1]):
                row[j] = half_to_float(float_to_half(row[j] + factor * b[k, j]))
        for j in range(b.shape[1]):
            out[i, j] = float_to_half(row[j])
