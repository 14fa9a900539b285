"""A run ends on all ranks when it ends on one, for whatever reason."""

import os
import re
import signal

import pytest

from pipeline import Snapshot
from tests.support.loaded_python import loaded_python
from tests.support.matrix import matrix
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT, launcher, running

SCRIPT = str(ROOT / "tests" / "mpi" / "pipeline" / "life_script.py")
N_RANKS = 2
# From the event to the end of all processes.
DEADLINE = 10
# Python, Chainer and MPI.
START_UP = 20


def run(tmp_path, event, rank):
    argv = ["-m", "pipeline", SCRIPT, tmp_path, event, rank]
    return mpiexec(N_RANKS, argv, timeout=START_UP + DEADLINE)


@pytest.mark.parametrize(
    "event, rank", [("clock", 1), pytest.param("request", 1, marks=pytest.mark.matrix)]
)
def test_what_one_rank_decides_stops_all(event, rank, tmp_path):
    result = run(tmp_path, event, rank)
    assert result.returncode == 0, result.stdout
    ends = re.findall(r"rank (\d) goes on after iteration (\d+)", result.stdout)
    assert {rank for rank, _ in ends} == {"0", "1"}
    assert len({iteration for _, iteration in ends}) == 1


@pytest.mark.parametrize(
    "event, rank, words",
    [
        ("nan", 1, ["rank 1 of 2 on", "parameters in optimizer 'main' diverge"]),
        ("error", 0, ["rank 0 of 2 on", 'KeyError: "the user\'s own"']),
        *matrix(
            ("nan everywhere", 1, ["rank 0 of 2 on", "optimizer 'main' diverge"]),
            ("samples", 0, ["StopIteration"]),
            ("exit", 1, ["rank 1 of 2 on", "exits with 1", "had enough"]),
        ),
        ("exit 3", 1, ["rank 1 of 2 on", "exits with 3"]),
        ("end", 1, ["rank 1 ended its script after call"]),
    ],
)
def test_a_failure_of_one_rank_ends_all_with_one_message(event, rank, words, tmp_path):
    result = run(tmp_path, event, rank)
    assert result.returncode == (3 if event == "exit 3" else 1), result.stdout
    for word in words:
        assert word in result.stdout, result.stdout
    assert "goes on" not in result.stdout
    if event != "end":
        assert result.stdout.count("ends all ranks") == 1, result.stdout
        assert result.stdout.count("Traceback") == (not event.startswith("exit"))
    assert "runpy" not in result.stdout


@pytest.mark.parametrize(
    "number, whom",
    [(signal.SIGTERM, 1), (signal.SIGUSR1, "mpiexec")],
)
def test_a_signal_stops_all_ranks_with_a_snapshot(number, whom, tmp_path):
    with training(tmp_path) as (program, pids):
        os.kill(pids[whom], number)
        assert program.wait(DEADLINE) == 75, program.output
        output = program.output
    assert output.count(f"stopped by signal {int(number)}") == N_RANKS, output
    # The one rank that prints.
    assert output.count("stopped by SIG") == 1, output
    assert output.count("exit code 75: a signal stopped the training") == 1, output
    (iteration,) = set(re.findall(r"goes on after iteration (\d+)", output))
    snapshots = sorted(path.name for path in tmp_path.glob("[!.]*"))
    ours = [f"snapshot_{r}_{iteration}" for r in range(N_RANKS)]
    assert snapshots == [*ours, "whole"]
    # Written in the background, before the script went on.
    assert Snapshot.open(tmp_path / "whole").n_steps == int(iteration)


def test_who_was_stopped_does_not_wait_for_ever(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from mpi4py import MPI\n"
        "from pipeline.training import signals\n"
        "signals._has_stopped = MPI.COMM_WORLD.rank == 0\n"
    )
    text = (
        "from pipeline import scripts\n"
        "scripts._SECONDS_FOR_OTHERS = 0.5\n"
        f"scripts.run_script([{str(script)!r}])\n"
    )
    assert mpiexec(N_RANKS, ["-c", text], timeout=START_UP).returncode == 75


def test_a_signal_that_nobody_handles_ends_all(tmp_path):
    """MPICH would drop it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import time\nfrom mpi4py import MPI\n"
        "print('is here', flush=True)\ntime.sleep(1000)\n"
    )
    command = [launcher(), "-n", "2", *loaded_python(), "-m", "pipeline", str(script)]
    with running(command) as program:
        program.wait_for(lambda: program.output.count("is here") == 2, START_UP)
        program.process.send_signal(signal.SIGUSR1)
        assert program.wait(DEADLINE) != 0


def test_an_interrupt_ends_all(tmp_path):
    with training(tmp_path) as (program, pids):
        os.kill(pids[1], signal.SIGINT)
        assert program.wait(DEADLINE) != 0
        assert program.output.count("ends all ranks") == 1, program.output
        assert program.output.count("\nKeyboardInterrupt") == 1


def training(tmp_path):
    return _Training(tmp_path)


class _Training:
    def __init__(self, tmp_path):
        argv = ["-m", "pipeline", SCRIPT, str(tmp_path), "wait", "0"]
        command = [launcher(), "-n", str(N_RANKS), *loaded_python(), *argv]
        self._running = running(command)

    def __enter__(self):
        program = self._running.__enter__()

        def pids():
            assert program.process.poll() is None, program.output
            found = re.findall(r"rank (\d) trains in process (\d+)", program.output)
            return len(found) == N_RANKS and {int(r): int(pid) for r, pid in found}

        pids = program.wait_for(pids, START_UP)
        return program, {**pids, "mpiexec": program.process.pid}

    def __exit__(self, *error):
        return self._running.__exit__(*error)
