"""Loops that compute checksums of arrays."""

import numpy as np

from chainer_kernels.compiling import loop


@loop("u8(u4[::1])")
def checksum(words):
    """Returns 64 bits that depend on each word and its place.

    Each word is mixed with its place before the sum. A sum of products would be the
    same for all permutation matrices.
    """
    total = np.uint64(0)
    for i in range(words.size):
        mixed = np.uint64(words[i]) + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        total += mixed ^ (mixed >> np.uint64(32))
    return total
