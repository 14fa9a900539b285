"""Loops that compute checksums of arrays."""

import numpy as np

from chainer_kernels.compiling import loop


@loop("u8(u4[::1])")
def checksum(words):
    """Returns 64 bits that depend on all words, and on their order."""
    total = np.uint64(0)
    for i in range(words.size):
        word = np.uint64(words[i])
        total += (word + np.uint64(i)) * (word + np.uint64(0x9E3779B97F4A7C15))
    return total
