"""A rank that does not come: the others end, and say who waits for whom, and where."""

import contextlib
import os
import re
import signal
import time

import numpy as np
import pytest

from data_parallel import Exchange
from data_parallel.arrays import specs_of
from divisible.communication.errors import StallError
from tests.support.loaded_python import loaded_project
from tests.support.mpiexec import assert_on_ranks, on_ranks, worker
from tests.support.processes import launcher, running

N_RANKS = 3
LATE = 1
# Of a wait in vain.
TIMEOUT = 1
# Who gets no core for a while counts that as waiting, too.
WAITED = r"waited \d+ s for"
# From the fault to the end of all processes; Python, Chainer and MPI.
DEADLINE, START_UP = 10, 20
PATIENCE = 60


def arrays_of(n=3):
    return [np.ones(40_000, "f") for _ in range(n)]


def exchange_of(comm, exchange_dtype="int8", **options):
    return Exchange(
        comm,
        exchange_dtype=exchange_dtype,
        **{
            "local_size": 1,
            "minimum": 0,
            "bucket_bytes": 1000,
            "chunk_bytes": 40_000,
            "timeout": TIMEOUT,
            **options,
        },
    )


# What all ranks do, and how far the late one comes.


def not_made(comm, is_late):
    return None if is_late else lambda: exchange_of(comm)


def not_begun(comm, is_late):
    exchange = exchange_of(comm)
    return None if is_late else lambda: exchange.mean(arrays_of())


def not_finished(comm, is_late):
    """It has said what it has, and gives nothing."""
    exchange = exchange_of(comm)
    arrays = arrays_of()
    exchange.begin(lambda: specs_of(arrays, None), None, None)

    def mean():
        for i, array in enumerate(arrays):
            exchange.put(i, array)
        exchange.finish()

    exchange.look()
    return None if is_late else mean


def not_all_given(comm, is_late, exchange_dtype="int8", **options):
    """It gives the first array only."""
    exchange = exchange_of(comm, exchange_dtype, **options)
    arrays = arrays_of()
    exchange.begin(lambda: specs_of(arrays, None), arrays, None)

    def give(n):
        for i, array in enumerate(arrays[:n]):
            exchange.put(i, array)

    def give_one_and_look():
        give(1)
        deadline = time.monotonic() + 2 * TIMEOUT
        while time.monotonic() < deadline:
            exchange.look()
            time.sleep(0.001)

    def mean():
        give(3)
        exchange.finish()

    return give_one_and_look if is_late else mean


def no_contribution(comm, is_late):
    """Nodes of two ranks and one."""
    return not_all_given(comm, is_late, local_size=2)


def no_quantiles(comm, is_late):
    return not_all_given(comm, is_late, "fp8", strategy="oyama2017", minimum=None)


SEND_1 = "for rank 1 to send its part of bucket"
CASES = {
    not_made: "for rank 1 to make the exchange (ranks 0 and 2 are here)",
    not_begun: "for rank 1 to begin the exchange. Rank 1 does not answer",
    not_finished: f"{SEND_1} 0 (0). Rank 1 does not answer",
    not_all_given: f"{SEND_1} 1 (1). Rank 1 does not answer",
    no_contribution: f"{SEND_1} 1 (1)",
    no_quantiles: "for rank 1 to send its quantiles of bucket 1 (1)",
}


def stalls(comm, name):
    case = globals()[name]
    # What the first one loads takes longer than these wait.
    for options in [{}, {"exchange_dtype": "fp8", "strategy": "oyama2017"}]:
        with exchange_of(comm, **options, timeout=PATIENCE) as exchange:
            exchange.mean(arrays_of(), weights=arrays_of())
    ours = comm.Dup()
    call = case(ours, comm.rank == LATE)
    said = ""
    try:
        if call is not None:
            call()
    except StallError as error:
        said = str(error)
    everyone = comm.allgather(said)
    assert [rank for rank, text in enumerate(everyone) if text] == [0, 2], everyone
    assert all(re.search(WAITED, everyone[rank]) for rank in [0, 2]), everyone
    words = CASES[case]
    # Who waits for the other that waits says so: "Rank 0 itself waits for rank 1 ...".
    assert all(words in everyone[rank] for rank in [0, 2]), everyone


SOME = [not_finished, no_contribution]


@pytest.mark.parametrize(
    "case",
    [
        case.__name__
        if case in SOME
        else pytest.param(case.__name__, marks=pytest.mark.matrix)
        for case in CASES
    ],
)
def test_who_waits_names_who_is_missing(case):
    assert_on_ranks(N_RANKS, stalls, case)


def other_orders(comm):
    """Two exchanges, on one rank in the other order."""
    exchanges = [exchange_of(comm) for _ in range(2)]
    with pytest.raises(StallError, match="to begin the exchange"):
        exchanges[comm.rank].mean(arrays_of(1))
    for exchange in exchanges:
        if exchange is exchanges[comm.rank]:
            with pytest.raises(RuntimeError, match="has ended in the middle, with an"):
                exchange.mean(arrays_of(1))
            exchange.close()


def test_exchanges_in_different_orders():
    assert_on_ranks(2, other_orders)


def exchange_for_ever(comm, timeout):
    """Exchanges until something happens; says so when it is under way."""
    # What the first one loads may take longer than others are to wait.
    with exchange_of(comm, timeout=PATIENCE) as exchange:
        exchange.mean(arrays_of())
    exchange = exchange_of(comm, timeout=timeout)
    for i in range(1_000_000):
        exchange.mean(arrays_of())
        if i == 3:
            print(f"rank {comm.rank} runs in process {os.getpid()}", flush=True)


@contextlib.contextmanager
def exchanging(timeout=PATIENCE):
    """Yields the program and its ranks' process ids."""
    command = [launcher(), "-n", str(N_RANKS), *loaded_project()]
    with running([*command, *worker(exchange_for_ever, timeout)]) as it:

        def pids():
            assert it.process.poll() is None, it.output
            found = re.findall(r"rank (\d) runs in process (\d+)", it.output)
            return len(found) == N_RANKS and {int(r): int(pid) for r, pid in found}

        yield it, it.wait_for(pids, START_UP)


def test_a_killed_rank_ends_all():
    with exchanging() as (program, pids):
        os.kill(pids[LATE], signal.SIGKILL)
        assert program.wait(DEADLINE) != 0
        # mpiexec says it; the others are ended before they could notice.
        assert re.search("signal 9|SIGKILL|Killed", program.output), program.output


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.matrix)])
def test_a_stopped_rank_ends_all(rank):
    timeout = 3
    with exchanging(timeout) as (program, pids):
        os.kill(pids[rank], signal.SIGSTOP)
        assert program.wait(timeout + DEADLINE) != 0
        where = "(begin the exchange|(send|take) its part of bucket [012] )"
        pattern = rf"{WAITED} .*rank {rank} to {where}"
        assert re.search(pattern, program.output), program.output


def failing_in_between(comm):
    exchange = exchange_of(comm, timeout=PATIENCE)
    exchange.mean(arrays_of())
    exchange.start(arrays_of())
    if comm.rank == LATE:
        raise KeyError("the user's own")
    exchange.finish()


def test_an_exception_in_the_middle_ends_all():
    result = on_ranks(N_RANKS, failing_in_between, timeout=START_UP + DEADLINE)
    assert result.returncode != 0
    assert "rank done" not in result.stdout
    assert result.stdout.count("ends all ranks") == 1, result.stdout
    assert 'KeyError: "the user\'s own"' in result.stdout
