"""Ranks that tests share find what hangs, and keep one test from another."""

import importlib
import os
import signal
import sys
import threading
import warnings

import chainer
import numba
import numpy as np
import pytest

from divisible.communication.collectives import all_gather
from tests.support.ranks import SIZE, Ranks


@pytest.fixture(scope="module")
def shared():
    """Holds the ranks, which some of these tests end."""
    kept = [Ranks()]
    yield kept
    kept[0].close()


@pytest.fixture
def ranks(shared):
    if shared[0].are_worn:
        shared[0] = Ranks()
    return shared[0]


def say(comm, word):
    print(word, comm.rank, comm.size)


@pytest.mark.parametrize("n", [1, 3, SIZE])
def test_each_rank_calls_the_function(ranks, n):
    outcomes, output = ranks.call(n, say, ("hello",), 10)
    assert outcomes == ["done"] * n
    assert output.splitlines() == [f"hello {i} {n}" for i in range(n)]


def one_fails(comm):
    if comm.rank == 1:
        raise ArithmeticError("it spills")
    all_gather(comm, None, 1000)


def test_ranks_that_wait_for_one_that_failed_are_interrupted(ranks):
    outcomes, output = ranks.call(3, one_fails, (), 10)
    assert sorted(outcomes) == ["failed", "interrupted", "interrupted"]
    assert "rank 1 of 3 failed" in output and output.count("Traceback") == 1
    # And go on.
    assert ranks.call(3, say, ("hello",), 10).outcomes == ["done"] * 3


def leave_a_thread(comm, in_mpi):
    wait = comm.recv if in_mpi and comm.rank == 1 else threading.Event().wait
    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("in_mpi", [False, True])
def test_ranks_where_a_thread_waits_in_mpi_are_replaced(ranks, in_mpi):
    """It takes a core for ever."""
    assert ranks.call(2, leave_a_thread, (in_mpi,), 10).outcomes == ["done"] * 2
    assert ranks.are_worn == in_mpi


def import_while_another_fails(comm, folder):
    sys.path.insert(0, folder)
    comm.Barrier()
    if comm.rank == 1:
        raise ArithmeticError("it spills")
    importlib.import_module("slow_package")
    all_gather(comm, None, 1000)


def use_the_package(comm, folder):
    sys.path.insert(0, folder)
    assert importlib.import_module("slow_package").part


def test_an_import_is_not_interrupted(ranks, tmp_path):
    package = tmp_path / "slow_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import time\nimport slow_package.part\ntime.sleep(1)\n"
    )
    (package / "part.py").write_text("")
    folder = str(tmp_path)
    outcomes = ranks.call(2, import_while_another_fails, (folder,), 10).outcomes
    assert sorted(outcomes) == ["failed", "interrupted"]
    assert ranks.call(2, use_the_package, (folder,), 10).outcomes == ["done"] * 2


def compile_while_another_fails(comm):
    lines = "\n".join(f"    x = x * {i} + x % {i + 1}" for i in range(200))
    exec(f"def long(x):\n{lines}\n    return x", found := {})
    comm.Barrier()
    if comm.rank == 1:
        raise ArithmeticError("it spills")
    numba.njit(found["long"])(1)
    print("compiled")
    all_gather(comm, None, 1000)


def test_what_compiles_is_not_interrupted(ranks):
    outcomes, output = ranks.call(2, compile_while_another_fails, (), 60)
    assert sorted(outcomes) == ["failed", "interrupted"]
    assert "compiled" in output


def hang(comm):
    comm.recv(source=comm.rank)


def die(comm):
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()


@pytest.mark.parametrize("function, timeout", [(hang, 0.2), (die, 10)])
def test_ranks_that_do_not_answer_are_ended(ranks, function, timeout):
    program = ranks.program
    assert program.processes()
    assert ranks.call(2, function, (), timeout).outcomes == []
    assert ranks.are_worn
    program.wait_for(lambda: not program.processes(), 5)


def leave_things_behind(comm):
    assert chainer.config.train and not hasattr(chainer.global_config, "mine")
    drawn = comm.allgather(np.random.rand())
    assert len(set(drawn)) == comm.size
    print(drawn)
    warnings.warn("an error later", stacklevel=1)
    warnings.simplefilter("error")
    chainer.config.train = False
    chainer.global_config.mine = "mine"


def test_a_case_does_not_see_what_others_have_set(ranks):
    results = [ranks.call(2, leave_things_behind, (), 10) for _ in range(2)]
    assert [result.outcomes for result in results] == [["done"] * 2] * 2
    first, second = (
        [line for line in result.output.splitlines() if line.startswith("[")]
        for result in results
    )
    assert first == second and len(first) == 2
