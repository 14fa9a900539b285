"""Errors and ends of ranks, while ranks are in different minibatches."""

from __future__ import annotations

import os
import sys
import time

import pytest

from pipeline import DisagreementError, StallError
from tests.support.equivalence import make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks, on_ranks
from tests.support.overlap import hold_up, make
from tests.support.processes import LOAD

TAG = 7
N_RANKS = 3
BATCHES = make_batches([8] * 4, n_in=8)


def _train_until_held_up(comm, wait, **options):
    """Makes two steps; in the third, the last rank is held up until others have ended.

    Returns:
        The pipeline, its optimizer, and the result of the third step.
    """
    pipe, optimizer = make(comm, **options)
    for batch in BATCHES[:2]:
        pipe.step(*batch)
        optimizer.update()
    if pipe.is_last:
        hold_up(pipe, lambda: wait([comm.recv(source=i, tag=TAG) for i in range(2)]))
    result = pipe.step(*BATCHES[2])
    optimizer.update()
    if not pipe.is_last:
        comm.send("ended step 3", comm.size - 1, TAG)
    return pipe, optimizer, result


def fail_behind_others(comm):
    def fail(_):
        raise OSError("disk on fire")

    pipe, *_ = _train_until_held_up(comm, fail)
    pipe.step(*BATCHES[3])


def test_an_exception_while_others_are_in_the_next_step_ends_all():
    result = on_ranks(N_RANKS, fail_behind_others, timeout=40)
    assert result.returncode != 0
    assert "ActionError: 2W3 failed on rank 2" in result.stdout
    assert "OSError: disk on fire (in step 3)" in result.stdout


def fail_while_others_read(comm):
    def fail(_):
        raise OSError("disk on fire")

    *_, result = _train_until_held_up(comm, fail)
    print("the loss is", result["loss"])


@pytest.mark.matrix
def test_an_exception_while_others_read_ends_all():
    result = on_ranks(N_RANKS, fail_while_others_read, timeout=40)
    assert result.returncode != 0
    assert "OSError: disk on fire (in step 3)" in result.stdout
    assert "the loss is 1." not in result.stdout


def leave_while_others_read(comm, how):
    def leave(_):
        if how == "kill":
            os.kill(os.getpid(), 9)
        sys.exit()

    *_, result = _train_until_held_up(comm, leave)
    print("the loss is", result["loss"])


@pytest.mark.parametrize("how", ["exit", *matrix("kill")])
def test_a_rank_that_ends_while_others_read_its_result(how):
    result = on_ranks(N_RANKS, leave_while_others_read, how, timeout=40)
    assert result.returncode != 0 and "the loss is 1." not in result.stdout
    if how == "exit":
        words = "StallError: rank 2 ended its script after call 2 of the pipeline"
        assert words in result.stdout


def hang_while_others_read(comm):
    """The last rank does something else in step 3, and another one is in step 4."""
    pipe, _, result = _train_until_held_up(comm, lambda _: time.sleep(600), timeout=3)
    if comm.rank == 1:
        pipe.step(*BATCHES[3])
    result["loss"]


def test_the_flight_record_has_the_step_of_each_rank():
    output = on_ranks(N_RANKS, hang_while_others_read, timeout=40).stdout
    for line in (
        "rank 2 is behind: in call 3, step, it began 2W3, and did not end it",
        "rank 0 waits, in call 3, step, for rank 2 to tell the result of step 3",
        "rank 1 waits, in call 4, step, for what rank 0 sends, for 1F0",
        "StallError: waited 3 s for rank 2 to tell the result of step 3",
    ):
        assert line in output, output


def end_without_a_read(comm):
    _train_until_held_up(comm, lambda _: time.sleep(1))


def test_a_script_may_end_without_a_read():
    result = on_ranks(N_RANKS, end_without_a_read, timeout=40)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("rank done") == N_RANKS


def end_without_a_read_of_a_failed_rank(comm):
    def fail(_):
        time.sleep(1)
        sys.exit()

    _train_until_held_up(comm, fail)


def test_a_script_that_ends_before_a_result_comes_ends_with_an_error():
    result = on_ranks(N_RANKS, end_without_a_read_of_a_failed_rank, timeout=40)
    assert result.returncode != 0
    assert "failed at its end and ends all ranks" in result.stdout
    assert "StallError: rank 2 ended its script after call 2" in result.stdout


def test_a_disagreement_has_the_number_of_its_step():
    assert_on_ranks(N_RANKS, _disagree)


def _disagree(comm):
    """The last rank leaves its step when the others are in the next one already."""
    pipe, optimizer, result = _train_until_held_up(comm, lambda _: None)
    x, t = BATCHES[3]
    with pytest.raises(DisagreementError, match=r"but t has 7.* \(in step 4\)"):
        pipe.step(x, t[:7])
    # The third step was complete.
    assert pipe.n_steps == 3 and set(result) == {"loss", "accuracy"}
    with pytest.raises(RuntimeError, match="an earlier call failed"):
        pipe.step(x, t)


def test_a_read_has_a_time_limit():
    assert_on_ranks(2, _wait_in_vain)


def _wait_in_vain(comm):
    pipe, optimizer = make(comm, timeout=2 * LOAD)
    pipe.step(*BATCHES[0])
    optimizer.update()
    if pipe.is_last:
        hold_up(pipe, lambda: comm.recv(source=0, tag=TAG))
    result = pipe.step(*BATCHES[1])
    if not pipe.is_last:
        with pytest.raises(StallError, match="rank 1 to tell the result of step 2"):
            result["loss"]
        comm.send("has waited", 1, TAG)
        with pytest.raises(RuntimeError, match="an earlier call failed"):
            pipe.step(*BATCHES[2])
