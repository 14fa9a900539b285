"""The random numbers of ``numpy.random``, many at a time.

NumPy's generator draws one number after the other. These loops take its state on in
vector instructions, to the same numbers: MT19937 of Matsumoto and Nishimura, "Mersenne
twister", 1998, where ``rand`` makes a float64 of two draws.

::

    draws of 32 bits    a, b
    rand                (a >> 5, b >> 6) as one number of 53 bits, times 2^-53
"""

import numpy as np
from numba import njit

from chainer_kernels.compiling import loop

# Numba widens integers to 64 bits; casts keep the vectors full. An index without a sign
# is not looked at.
U32, U64 = np.uint32, np.uint64

ZERO = np.float32(0)
#: Numbers of a state, and how far apart those are that are combined.
SIZE, APART = U64(624), U64(397)
ONE, REST = U64(1), SIZE - APART


@njit(error_model="numpy")
def mixed(this, following, other):
    """Returns the number of the next state that replaces ``this``."""
    y = U32(U32(this & U32(0x80000000)) | U32(following & U32(0x7FFFFFFF)))
    odd = U32(0x9908B0DF) if y & U32(1) else U32(0)
    return U32(U32(other ^ U32(y >> U32(1))) ^ odd)


@njit(error_model="numpy")
def advance(key):
    """Replaces a state by the next one."""
    for i in range(REST):
        key[i] = mixed(key[i], key[i + ONE], key[i + APART])
    for i in range(REST, SIZE - ONE):
        key[i] = mixed(key[i], key[i + ONE], key[i - REST])
    last = SIZE - ONE
    key[last] = mixed(key[last], key[U64(0)], key[last - REST])


@loop("i8(u4[::1], i8, u4[::1])")
def draw(key, position, words):
    """Draws as many words as there are.

    Args:
        key: The state, which is taken on.
        position: How many numbers of it were drawn.
        words: Written: random words of 32 bits each.

    Returns:
        The next position.
    """
    drawn = 0
    while drawn < words.size:
        if position == 624:
            advance(key)
            position = 0
        n = min(624 - position, words.size - drawn)
        states = key[position : position + n]
        out = words[drawn : drawn + n]
        for i in range(out.size):
            y = states[i]
            y = U32(y ^ U32(y >> U32(11)))
            y = U32(y ^ U32(U32(y << U32(7)) & U32(0x9D2C5680)))
            y = U32(y ^ U32(U32(y << U32(15)) & U32(0xEFC60000)))
            out[i] = U32(y ^ U32(y >> U32(18)))
        position += n
        drawn += n
    return position


@loop("void(u8[::1], f4[::1], u8, f4)")
def dropout_mask(pairs, out, threshold, scale):
    """Computes ``scale * (rand >= threshold / 2^53)``, pairs being a + 2^32 b."""
    for i in range(out.size):
        a = U64(U64(pairs[i] & U64(0xFFFFFFFF)) >> U64(5))
        bits = U64(U64(a << U64(26)) | U64(pairs[i] >> U64(38)))
        out[i] = scale if bits >= threshold else ZERO
