"""Numbers that a rank reads late: in any order, and without a call of other ranks."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from divisible.communication.collectives import Gathering
from divisible.communication.errors import StallError
from divisible.communication.late_numbers import Filling, LateNumbers, read_all
from tests.support.mpiexec import assert_on_ranks

TAG, GO = 5, 6


class Calls:
    """Records how often a read has waited for messages."""

    has_failed = False

    def __init__(self):
        self.n_waits = 0

    @contextlib.contextmanager
    def awaiting(self):
        self.n_waits += 1
        yield


def filled(comm, calls, number, timeout=20):
    """Returns a number that the last rank sends."""
    values, root = np.full(2, number * (comm.rank + 1.0)), comm.size - 1
    operation = Filling(comm, values, root, f"number {number}", TAG)
    return LateNumbers(calls, values, operation, timeout)


def test_numbers_are_read_in_any_order():
    assert_on_ranks(3, _read_in_another_order)


def _read_in_another_order(comm):
    calls = Calls()
    late = [filled(comm, calls, number) for number in range(4)]
    gathering = Gathering(comm, np.array([comm.rank]), "to count")
    late.append(LateNumbers(calls, gathering.values, gathering, 20))
    # One rank reads in another order than the others, and one nothing by itself.
    order = {0: late[::-1], 1: late}.get(comm.rank, [])
    for each in order:
        each.read()
    read_all(calls)
    assert [each.read()[0] for each in late[:4]] == [0, 3, 6, 9]
    assert late[4].read().tolist() == [[0], [1], [2]]


def test_a_read_waits_once_and_only_for_what_has_not_come():
    assert_on_ranks(2, _read_twice)


def _read_twice(comm):
    calls = Calls()
    if comm.rank == 1:
        comm.recv(source=0, tag=GO)
    late = filled(comm, calls, 1)
    if comm.rank == 0:
        comm.send("go on", 1, GO)
    assert [late.read().tolist() for _ in range(2)] == [[2, 2], [2, 2]]
    assert calls.n_waits <= 1


def test_numbers_of_another_owner_stay_under_way():
    assert_on_ranks(2, _read_those_of_one)


def _read_those_of_one(comm):
    one, other = Calls(), Calls()
    if comm.rank == 0:
        mine, others = filled(comm, one, 1), filled(comm, other, 2)
        # The other rank sends the second number after this read.
        read_all(one)
        comm.send("go on", 1, GO)
        assert (mine.read()[0], others.read()[0]) == (2, 4)
    else:
        filled(comm, one, 1)
        comm.recv(source=0, tag=GO)
        filled(comm, other, 2)


def test_a_read_has_a_time_limit():
    assert_on_ranks(2, _wait_in_vain)


def _wait_in_vain(comm):
    if comm.rank == 0:
        late = filled(comm, Calls(), 1, timeout=0.1)
        with pytest.raises(StallError, match="rank 1 to tell number 1"):
            late.read()
        comm.send("go on", 1, GO)
        while True:
            # The numbers that come after an error can still be read.
            with contextlib.suppress(StallError):
                late.read()
                break
    else:
        comm.recv(source=0, tag=GO)
        filled(comm, Calls(), 1)
