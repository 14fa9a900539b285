"""Buffers are used again, whatever sizes messages have."""

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_parallel.messages import Buffers


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=9), min_size=1))
def test_never_more_buffers_than_were_in_use_at_once(rounds):
    buffers = Buffers()
    for sizes in rounds:
        taken = [buffers.take(n) for n in sizes]
        assert all(buffer.size >= n for buffer, n in zip(taken, sizes))
        assert len({id(buffer) for buffer in taken}) == len(sizes)
        for buffer in taken:
            buffers.give_back(buffer)
    most, largest = max(map(len, rounds)), max(map(max, rounds))
    assert largest <= buffers.n_bytes <= most * largest


def test_the_shortest_that_is_long_enough_is_taken():
    buffers = Buffers()
    short, long = buffers.take(10), buffers.take(20)
    buffers.give_back(long)
    buffers.give_back(short)
    assert buffers.take(7) is short
    assert buffers.take(7) is long
    assert buffers.n_bytes == 0


def test_what_is_too_short_makes_room():
    buffers = Buffers()
    buffers.give_back(buffers.take(10))
    buffers.give_back(buffers.take(20))
    assert buffers.n_bytes == 20
    buffers.clear()
    assert buffers.n_bytes == 0


def test_a_gpu_gets_page_locked_ones():
    buffers = Buffers()
    buffers.give_back(buffers.take(10))
    made = []

    def page_locked(n_bytes, dtype):
        made.append(np.empty(n_bytes, dtype))
        return made[-1]

    with mock.patch("data_parallel.messages.page_locked", page_locked):
        buffers.clear(are_page_locked=True)
        assert buffers.take(5) is made[0]
        buffers.clear()
        buffers.take(6)
    assert [array.size for array in made] == [5]
