"""Checksums differ where arrays have the same words in other places."""

import numpy as np

from chainer_kernels.loops.checksums import checksum


def _sum(array):
    return checksum(np.ascontiguousarray(array, "f").reshape(-1).view(np.uint32))


def test_permutation_matrices():
    order = np.random.RandomState(0)
    found = {_sum(np.eye(64)[order.permutation(64)]) for _ in range(1000)}
    assert len(found) == 1000


def test_signs():
    signs = np.tile([1, -1, -1, 1], 16)
    assert _sum(signs) != _sum(-signs)


def test_one_bit():
    zeros = np.zeros(100, np.uint32)
    sums = {checksum(zeros)}
    for i in range(100):
        for bit in range(32):
            changed = zeros.copy()
            changed[i] = 1 << bit
            sums.add(checksum(changed))
    assert len(sums) == 3201
