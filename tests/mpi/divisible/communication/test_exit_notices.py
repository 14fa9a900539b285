"""A rank that ends its script tells those that wait for it, and nobody else."""

import re
import time

import numpy as np
import pytest
from chainer import links as L
from chainer import optimizers
from mpi4py import MPI

from data_parallel import Grid, create_multi_node_optimizer
from divisible.communication.collectives import (
    all_gather,
    broadcast,
    broadcast_object,
    clock_offsets,
)
from divisible.communication.communicators import announcement, duplicate
from divisible.communication.exit_notices import exit_notices
from heterogeneous import RectangularMLP, Remapper, rectangular_partition
from mixed_precision import MixedPrecision
from tests.support.mpiexec import on_ranks

LEAVES = 1
# Far longer than the test may take.
TIMEOUT = 300
START_UP, DEADLINE = 20, 15


class Holder:
    """Holds a communicator."""


def ours(comm):
    holder = Holder()
    return holder, duplicate(comm, TIMEOUT, holder, announcement().name)


# What all ranks do twice, and rank 1 does once. Each returns the call.


def updates_by_the_mean(comm):
    model = L.Linear(3, 2)
    sgd = create_multi_node_optimizer(optimizers.SGD(), comm, timeout=TIMEOUT)
    sgd.setup(model)

    def call():
        model.cleargrads()
        model.W.grad = np.ones_like(model.W.array)
        sgd.update()

    return call


def updates_one_late(comm):
    model = L.Linear(3, 2)
    sgd = optimizers.SGD()
    sgd = create_multi_node_optimizer(sgd, comm, double_buffering=True, timeout=TIMEOUT)
    sgd.setup(model)

    def call():
        # It begins with its gradients, and waits for those of the last one.
        for _ in range(2):
            model.cleargrads()
            model.W.grad = np.ones_like(model.W.array)
            sgd.update()

    return call


def updates_in_mixed_precision(comm):
    model = L.Linear(3, 2)
    optimizer = MixedPrecision(
        optimizers.SGD(), loss_scale=1, comm=comm, timeout=TIMEOUT
    ).setup(model)

    def call():
        model.cleargrads()
        model.W.grad = np.ones_like(model.W.array)
        optimizer.update()

    return call


def rectangles(comm):
    partition = rectangular_partition([1, 1, 1], 8, 6, 4, 9)
    return RectangularMLP(8, 6, 4, comm, partition, timeout=TIMEOUT)


def steps_in_rectangles(comm):
    mlp = rectangles(comm)
    return lambda: mlp.step(np.ones((9, 8), "f"), np.zeros((9, 4), "f"))


def remaps(comm):
    mlp = rectangles(comm)
    optimizer = optimizers.SGD(0.1).setup(mlp)
    remapper = Remapper(mlp, optimizer, every=1, timeout=TIMEOUT)
    return lambda: remapper.step(np.ones((9, 8), "f"), np.zeros((9, 4), "f"))


def gathers(comm):
    holder, own = ours(comm)
    return lambda: (holder, all_gather(own, comm.rank, TIMEOUT))


def is_told(comm):
    holder, own = ours(comm)
    return lambda: (holder, broadcast_object(own, "word", LEAVES, TIMEOUT))


def reads_clocks(comm):
    holder, own = ours(comm)
    return lambda: (holder, clock_offsets(own, TIMEOUT))


def divides(comm):
    """Rows and columns of ranks, of communicators of our own."""
    holder, own = ours(comm)
    return lambda: (holder, Grid(own, 1, timeout=TIMEOUT))


CALLS = [
    updates_by_the_mean,
    updates_one_late,
    updates_in_mixed_precision,
    steps_in_rectangles,
    remaps,
    gathers,
    is_told,
    reads_clocks,
    divides,
]


def leave_after_one(comm, name):
    call = globals()[name](comm)
    call()
    if comm.rank == LEAVES:
        return
    call()


@pytest.mark.parametrize(
    "call",
    [
        call.__name__
        if call in (updates_in_mixed_precision, remaps)
        else pytest.param(call.__name__, marks=pytest.mark.matrix)
        for call in CALLS
    ],
)
def test_who_waits_for_a_rank_that_has_left_is_told(call):
    result = on_ranks(3, leave_after_one, call, timeout=START_UP + DEADLINE)
    assert result.returncode != 0
    words = r"StallError: rank 1 ended its script, but rank [02] waits for .*\. All"
    assert re.search(words, result.stdout), result.stdout


def slow_taker(comm):
    """Rank 1 has what it needs and leaves; rank 2 comes late, and rank 0 waits."""
    holder, own = ours(comm)
    everything = np.zeros(4_000_000)
    if comm.rank == 2:
        time.sleep(1)
    broadcast(own, everything, 0, TIMEOUT)
    assert holder
    return own


def slow_taker_then_two(comm):
    own = slow_taker(comm)
    if comm.rank != LEAVES:
        # Nothing of rank 1's: it has left a communicator of all.
        group = own.Get_group().Incl([0, 2])
        two = own.Create_group(group)
        if comm.rank == 2:
            time.sleep(0.3)
        broadcast(two, np.zeros(4_000_000), 0, TIMEOUT)


def test_who_has_finished_may_leave_while_others_wait():
    result = on_ranks(3, slow_taker_then_two, timeout=START_UP + DEADLINE)
    assert result.returncode == 0, result.stdout


def late_updates_then_two(comm):
    """An exchange goes on while ranks 0 and 2 do what rank 1 has no part in."""
    model = L.Linear(3, 2)
    sgd = optimizers.SGD()
    sgd = create_multi_node_optimizer(sgd, comm, double_buffering=True, timeout=TIMEOUT)
    sgd.setup(model)
    two = comm.Create_group(comm.Get_group().Incl([0, 2]))
    for _ in range(3):
        model.cleargrads()
        model.W.grad = np.ones_like(model.W.array)
        sgd.update()
    if comm.rank != LEAVES:
        if comm.rank == 2:
            time.sleep(1)
        broadcast(two, np.zeros(4_000_000), 0, TIMEOUT)


def test_an_exchange_that_goes_on_ends_no_wait_for_others():
    result = on_ranks(3, late_updates_then_two, timeout=START_UP + DEADLINE)
    assert result.returncode == 0, result.stdout


def test_what_is_part_of_something_counted_is_not_counted():
    comm = MPI.COMM_SELF.Dup()
    counted = exit_notices(comm)
    with counted.together():
        assert counted.is_active
        broadcast_object(comm, 3, 0, 10)
        assert counted.is_active
    assert not counted.is_active
    comm.Free()
    assert exit_notices(comm := MPI.COMM_SELF.Dup()) is not counted
    comm.Free()
