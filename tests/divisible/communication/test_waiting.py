"""Waits end."""

import itertools

import pytest
from mpi4py import MPI

from divisible.communication import waiting
from divisible.communication.errors import StallError
from divisible.communication.flight_record import EVERYBODY
from divisible.communication.wait_queries import WaitPlace


@pytest.mark.parametrize("seconds, stalls", [(1.0, True), (400.0, False)])
def test_time_in_which_a_process_is_suspended_is_no_wait(seconds, stalls, monkeypatch):
    """It jumps between two polls, a few times."""
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: next(clock))
    answers = iter([False] * 8 + [True])

    def waited():
        return waiting.wait(
            lambda: next(answers), 5.0 if stalls else 10.0, lambda: "rank 1"
        )

    if not stalls:
        assert waited() is True
        return
    with pytest.raises(StallError, match="waited 6 s for rank 1"):
        waited()


def test_what_watches_is_asked_after_each_answer_that_is_not_true():
    asked = []
    answers = iter([False, 0, "here"])
    found = waiting.wait(
        lambda: next(answers), 5.0, lambda: "rank 1", lambda: asked.append(True)
    )
    assert found == "here" and len(asked) == 2


def test_what_watches_may_end_a_wait():
    def watch():
        raise ArithmeticError("it has left")

    with pytest.raises(ArithmeticError, match="it has left"):
        waiting.wait(lambda: False, 5.0, lambda: "rank 1", watch)


def test_a_wait_in_which_mpi_fails_names_what_was_waited_for():
    """As where the other rank is killed, before the launcher ends this one."""

    def test():
        raise MPI.Exception(MPI.ERR_IN_STATUS)

    with pytest.raises(StallError, match="for what rank 1 sends, for 0B2: ") as raised:
        waiting.wait(test, 5.0, lambda: "what rank 1 sends, for 0B2")
    assert isinstance(raised.value.__cause__, MPI.Exception)


@pytest.mark.parametrize(
    "peer, awaited, said",
    [
        (1, "what rank 1 sends", "for what rank 1 sends$"),
        (EVERYBODY, "to save", "for all ranks to save$"),
    ],
)
def test_a_stall_is_told_when_nobody_can_be_asked(peer, awaited, said):
    # As of a pipeline that was closed meanwhile.
    place = WaitPlace(MPI.COMM_NULL, peer)
    with pytest.raises(StallError, match=said):
        waiting.wait(lambda: False, 0.0, lambda: awaited, place=place)
