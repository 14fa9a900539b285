"""Waits end."""

import itertools

import pytest

from divisible.communication import waiting
from divisible.communication.errors import StallError


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
