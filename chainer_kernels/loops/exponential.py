"""Exponentials in float32, for loops that run in vector instructions.

Numba calls the C library for them, one number at a time. These are straight-line code,
which is compiled into the loops that call them.

::

    x = n ln 2 + r,  |r| <= ln 2 / 2        exp(x) = 2^n exp(r)
                                            exp(r) - 1 = r + r^2 (1/2 + r/6 + ...)

The polynomial is that of the Cephes library. Relative errors are below 2e-7, and those
of :func:`exp` below 1e-7.
"""

import numpy as np
from numba import njit

F, I = np.float32, np.int32  # noqa: E741

ZERO, ONE, TWO = F(0), F(1), F(2)
LOG2_E = F(1.44269504)
# Their sum is ln 2; the product of the first with n is exact.
LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)
# Near this number float32 counts in ones: adding it rounds, and leaves n in the bits.
ROUNDING = F(1.5 * 2**23)
ROUNDING_BITS = I(0x4B400000)
BIAS, MANTISSA_BITS = I(127), I(23)
P0, P1, P2 = F(1.9875691500e-4), F(1.3981999507e-3), F(8.3334519073e-3)
P3, P4, P5 = F(4.1665795894e-2), F(1.6666665459e-1), F(5.0000001201e-1)
# Beyond these exp is zero and infinite. Numbers below 2^-126 are gradually coarser.
EXP_LOWEST, EXP_HIGHEST = F(-104), F(89)
# Beyond these tanh is 1, and exp(x) - 1 is -1.
TANH_HIGHEST = F(10)
EXPM1_LOWEST = F(-20)
# Below this tanh(x) and exp(x) - 1 are x, which keeps the sign of zero.
LINEAR = F(1e-8)

# "reassoc" of a loop that adds must not get in here.
_inlined = njit(error_model="numpy", fastmath={"contract"})


@_inlined
def reduced(x):
    """Returns n and exp(r) - 1, for ``x = n ln 2 + r``."""
    shifted = x * LOG2_E + ROUNDING
    n = shifted - ROUNDING
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    return I(F(shifted).view(I) - ROUNDING_BITS), r + (r * r) * p


@_inlined
def power_of_two(n):
    """Returns 2^n for -127 < n < 128."""
    return I(I(n + BIAS) << MANTISSA_BITS).view(F)


@_inlined
def exp(x):
    """Returns e^x; 0, infinity and NaN where ``np.exp`` does."""
    x = EXP_LOWEST if x < EXP_LOWEST else x
    x = EXP_HIGHEST if x > EXP_HIGHEST else x
    n, p = reduced(x)
    # 2^128 is no float32, and neither is 2^-150: in two halves.
    half = I(n >> I(1))
    return (p + ONE) * power_of_two(half) * power_of_two(I(n - half))


@_inlined
def expm1(x):
    """Returns e^x - 1 for x up to 87, exact to its own last bits near zero."""
    bounded = EXPM1_LOWEST if x < EXPM1_LOWEST else x
    n, p = reduced(bounded)
    scale = power_of_two(n)
    return x if abs(x) < LINEAR else p * scale + (scale - ONE)


@_inlined
def tanh(x):
    """Returns the hyperbolic tangent."""
    bounded = TANH_HIGHEST if x > TANH_HIGHEST else x
    e = expm1(TWO * bounded)
    return x if abs(x) < LINEAR else e / (e + TWO)


@_inlined
def sigmoid(x):
    """Returns 1 / (1 + e^-x), which is 0 below -89."""
    return ONE / (ONE + exp(-x))
