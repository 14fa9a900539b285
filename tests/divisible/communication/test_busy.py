"""What messages are under way on is freed nowhere."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from divisible.communication import communicators
from divisible.communication.busy import free, mark_busy, mark_idle
from divisible.communication.collectives import all_gather, wait_for_all
from divisible.communication.errors import StallError

NUMBERS = itertools.count()
TAG = 7


class Holder:
    """Uses a communicator of ours."""


def duplicated(holder):
    """Returns it, and its name."""
    name = f"of test {next(NUMBERS)}"
    return communicators.duplicate(MPI.COMM_SELF, 5, holder, name), name


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "error, timeout, watch",
    [(StallError, 0.0, None), (KeyboardInterrupt, 5.0, interrupted)],
)
def test_what_was_left_in_the_middle_is_never_freed(error, timeout, watch):
    holder = Holder()
    comm, name = duplicated(holder)
    # As an operation of all ranks to which others have not come.
    request = comm.Irecv(np.zeros(1), 0, TAG)
    with pytest.raises(error):
        wait_for_all(comm, request, timeout, "to meet", watch)
    # An exchange that ends well afterwards changes nothing.
    mark_busy(comm)
    mark_idle(comm)
    free(comm)
    assert comm != MPI.COMM_NULL
    del holder
    assert name not in communicators._held
    assert name not in communicators._dropped
    comm.Send(np.zeros(1), 0, TAG)
    request.Wait()


def test_what_all_ranks_came_to_is_freed():
    holder = Holder()
    comm, name = duplicated(holder)
    assert all_gather(comm, "here", 5) == ["here"]
    del holder
    assert communicators._dropped.pop(name) is comm
    mark_busy(comm)
    free(comm)
    assert comm != MPI.COMM_NULL
    mark_idle(comm)
    free(comm)
    assert comm == MPI.COMM_NULL
