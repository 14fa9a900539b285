"""Generators that wait for messages: how many at once, in which order, how they end."""

import numpy as np
import pytest
from mpi4py import MPI

from data_parallel.flow import Flow
from data_parallel.messages import Pending
from divisible.communication.errors import StallError
from divisible.communication.wire import WINDOW

COMM = MPI.COMM_SELF


class Post:
    """Messages from this process to itself, by tag, delivered when it is told."""

    def __init__(self):
        self._requests = []

    def expect(self, tag):
        request = COMM.Irecv(np.zeros(1), 0, tag)
        self._requests.append(request)
        return [Pending(request, 0, f"rank 0 to send number {tag}")]

    def deliver(self, tag):
        self._requests.append(COMM.Isend(np.full(1, float(tag)), 0, tag))

    def end(self):
        MPI.Request.Waitall(self._requests)


@pytest.fixture
def post():
    made = Post()
    yield made
    made.end()


def steps_of(post, log, tag):
    def steps():
        log.append(f"begins {tag}")
        yield post.expect(tag)
        log.append(f"ends {tag}")

    return steps


def test_some_wait_at_once_and_begin_in_order(post):
    flow, log = Flow(COMM, 10), []
    assert flow.is_over
    for tag in range(WINDOW + 2):
        flow.add(steps_of(post, log, tag))
    assert not flow.is_over
    assert flow.look()
    assert log == [f"begins {tag}" for tag in range(WINDOW)]
    assert not flow.look()
    # Whichever is first, the next may begin.
    post.deliver(2)
    while not flow.look():
        pass
    assert log[WINDOW:] == ["ends 2", f"begins {WINDOW}"]
    for tag in [0, 1, *range(3, WINDOW + 2)]:
        post.deliver(tag)
    flow.finish()
    assert flow.is_over
    assert sorted(log[WINDOW + 2 :]) == sorted(
        [f"begins {WINDOW + 1}", *(f"ends {t}" for t in range(WINDOW + 2) if t != 2)]
    )


def test_steps_that_wait_for_nothing_go_on():
    log = []

    def steps():
        for number in range(3):
            log.append(number)
            yield []

    flow = Flow(COMM, 10)
    flow.add(steps)
    assert flow.look()
    assert log == [0, 1, 2] and flow.is_over


def test_a_step_may_add_others(post):
    flow, log = Flow(COMM, 10), []

    def steps():
        yield post.expect(7)
        flow.add(steps_of(post, log, 8))

    flow.add(steps)
    flow.look()
    post.deliver(7)
    post.deliver(8)
    flow.finish()
    assert log == ["begins 8", "ends 8"]


def test_a_wait_in_vain_ends_and_says_for_what(post):
    flow, log = Flow(COMM, 0.05), []
    flow.add(steps_of(post, log, 1))
    with pytest.raises(StallError, match="for rank 0 to send number 1"):
        flow.finish()
    post.deliver(1)


def test_an_error_of_a_step_passes(post):
    flow, log = Flow(COMM, 10), []

    def steps():
        yield post.expect(3)
        raise KeyError("a fault")

    flow.add(steps)
    flow.add(steps_of(post, log, 4))
    flow.look()
    post.deliver(3)
    post.deliver(4)
    with pytest.raises(KeyError, match="a fault"):
        flow.finish()


class Counting:
    """A communicator that counts looks for messages."""

    n_looks = 0

    def Iprobe(self, source, tag):
        self.n_looks += 1


def test_what_was_sent_goes_on_when_nothing_is_left_to_do(post):
    comm = Counting()
    flow = Flow(comm, 10)
    flow.look()
    assert comm.n_looks == 1
    flow.add(steps_of(post, [], 5))
    for _ in range(3):
        # What is waited for is tested instead.
        flow.look()
    assert comm.n_looks == 1
    post.deliver(5)
    while not flow.is_over:
        flow.look()
    flow.look()
    assert comm.n_looks == 2
