"""``divisible run --keep-going``: runs that lose ranks end as undisturbed ones."""

import json
import os
import re
import signal
import sys

import pytest

from pipeline import latest_snapshot
from pipeline.supervision.budget import Budget
from pipeline.supervision.supervisor import Supervisor
from tests.support.loaded_python import loaded_python
from tests.support.processes import launcher, running
from tests.support.snapshot_training import saved_arrays

N_ITERATIONS = 12
PROGRAM = "import divisible_command as it; it.main()"
SCRIPT = f"""
import os
import signal
import sys
import time

from mpi4py import MPI

from pipeline import StopOnSignal, snapshot
from tests.support.snapshot_training import small_trainer

out, fault, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
comm = MPI.COMM_WORLD
trainer, _ = small_trainer(comm, out, ({N_ITERATIONS}, "iteration"))
trainer.extend(snapshot(resume="auto", n_retains=2), trigger=(1, "iteration"))
trainer.extend(StopOnSignal(signals=[signal.SIGTERM]))


def disturb(trainer):
    marks = [f"{{out}}.{{fault}}{{i}}" for i in range(times)]
    left = [mark for mark in marks if not os.path.exists(mark)]
    at = trainer.updater.iteration
    if comm.rank == 1 and left and at >= 2 * (times - len(left) + 1):
        open(left[0], "w").close()
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "error":
            raise TypeError("no loss today")
    if fault == "slow":
        time.sleep(0.2)
    if fault == "always" and at >= 2:
        raise TypeError("no loss ever")
    if comm.rank == 0:
        print("iteration", at, flush=True)


trainer.extend(disturb, trigger=(1, "iteration"), priority=-200)
trainer.run()
print("trained")
"""


def arguments(folder, fault, times):
    (folder / "train.py").write_text(SCRIPT)
    return [str(each) for each in (folder / "train.py", folder / fault, fault, times)]


def supervised(folder, capfd, fault, times=0, **options):
    """Runs a supervisor here, and returns its exit code, lines and the output."""
    run = [*loaded_python(), "-c", PROGRAM, "run", *arguments(folder, fault, times)]
    command = [launcher(), "-n", "2", *run]
    code = Supervisor(command, 2, **{"budget": Budget(), **options}).run()
    output = "".join(capfd.readouterr())
    return code, told(output), output


def told(output):
    return re.findall(r"^divisible run: (.*)$", output, re.MULTILINE)


def result(folder, fault):
    arrays = saved_arrays(latest_snapshot(folder / fault))
    return {key: array.tobytes() for key, array in arrays.items()}


def test_killed_ranks_and_errors_cost_a_restart_and_change_nothing(tmp_path, capfd):
    code, lines, output = supervised(tmp_path, capfd, "none")
    assert code == 0 and lines == [], output
    log = tmp_path / "supervisor.jsonl"
    code, lines, output = supervised(tmp_path, capfd, "kill", 2, log=log)
    assert code == 0 and "trained" in output, output
    assert len(lines) == 2, output
    assert result(tmp_path, "kill") == result(tmp_path, "none")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["event"] for each in entries] == ["start", "end"] * 3
    assert [each.get("kind") for each in entries[1::2]] == ["lost"] * 2 + ["finished"]

    code, (line,), output = supervised(tmp_path, capfd, "error", 1)
    assert code == 0 and "TypeError: no loss today" in line, output
    assert result(tmp_path, "error") == result(tmp_path, "none")


def test_an_error_of_the_program_or_a_spent_budget_ends_the_run(tmp_path, capfd):
    code, lines, output = supervised(tmp_path, capfd, "always")
    assert code == 1, output
    assert "the same step twice, so it is the program's" in lines[-1]
    assert len(lines) <= 3

    code, lines, output = supervised(tmp_path, capfd, "kill", 3, budget=Budget(1))
    assert code != 0 and "All 1 restarts are spent" in lines[-1], output
    assert len(lines) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_supervisor_and_ranks(tmp_path, number):
    given = ("run", "--keep-going", "-n", "2", "--launcher", launcher())
    command = [sys.executable, "-c", PROGRAM, *given, *arguments(tmp_path, "slow", 0)]
    with running(command) as program:
        program.wait_for(lambda: "iteration 2\n" in program.output, 60)
        os.kill(program.process.pid, number)
        code = program.wait(30)
        assert told(program.output) == [], program.output
        program.wait_for(lambda: not program.processes(), 30)
        output = program.output
    if number == signal.SIGTERM:
        assert code == 75 and "a signal stopped the training" in output
    # What was saved is whole.
    assert latest_snapshot(tmp_path / "slow") is not None
