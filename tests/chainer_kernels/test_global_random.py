"""Draws of compiled loops from NumPy's global generator."""

import numpy as np
import pytest

from chainer_kernels import global_random


@pytest.mark.parametrize("n", [0, 1, 311, 312, 313, 40000])
@pytest.mark.parametrize("drawn_before", [0, 1, 400])
def test_numbers_and_state_are_those_of_rand(n, drawn_before):
    def start():
        np.random.seed(7)
        np.random.rand(drawn_before)
        np.random.randint(10)

    start()
    expected, following = np.random.rand(n), np.random.normal()
    start()
    found = np.empty(n)
    for part, pairs in global_random.pairs(n):
        a, b = (pairs & np.uint64(2**32 - 1)) >> np.uint64(5), pairs >> np.uint64(38)
        found[part] = (a * 2.0**26 + b) / 2.0**53
    np.testing.assert_array_equal(found, expected)
    assert np.random.normal() == following


def test_another_state_is_seen():
    state = np.random.get_state()
    next(global_random.pairs(1))
    first = np.random.rand()
    np.random.set_state(state)
    next(global_random.pairs(1))
    assert np.random.rand() == first
