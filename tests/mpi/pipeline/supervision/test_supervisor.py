"""``divisible run --keep-going``: runs that lose ranks end as undisturbed ones."""

import json
import os
import re
import signal

import pytest
from click.testing import CliRunner

from pipeline import latest_snapshot
from pipeline.command_line.main import main
from pipeline.supervision.budget import Budget
from pipeline.supervision.fleet import Fleet
from pipeline.supervision.hosts import Host
from pipeline.supervision.launching import Job
from pipeline.supervision.supervisor import Supervisor
from tests.support.loaded_python import loaded_python
from tests.support.matrix import matrix
from tests.support.processes import launcher, running
from tests.support.snapshot_training import saved_arrays
from tests.support.supervisors import divisible, launcher_of_hosts

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
        if fault == "host":
            open(os.path.join(os.path.dirname(out), "down-b"), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "error":
            raise TypeError("no loss today")
    if fault == "slow" or (fault == "host" and comm.size == 1):
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


def supervised(folder, capfd, fault, times=0, hosts="", **options):
    """Runs a supervisor here, and returns its exit code, lines and the output."""
    run = [*loaded_python(), "-c", PROGRAM, "run", *arguments(folder, fault, times)]
    job, found = Job([launcher()], run), [Host("", 2)]
    if hosts:
        job = Job([launcher_of_hosts(folder, launcher())], run)
        found = [Host(name, 1) for name in hosts.split(",")]
    fleet = Fleet(found, 2, answering=job.answering)
    code = Supervisor(job, fleet, **{"budget": Budget(), **options}).run()
    output = "".join(capfd.readouterr())
    return code, told(output), output


def told(output):
    return re.findall(r"^divisible run: (.*)$", output, re.MULTILINE)


def result(folder, fault):
    arrays = saved_arrays(latest_snapshot(folder / fault))
    return {key: array.tobytes() for key, array in arrays.items()}


@pytest.mark.parametrize("n_kills", [1, *matrix(2)])
def test_killed_ranks_and_errors_cost_a_restart_and_change_nothing(
    n_kills, tmp_path, capfd
):
    code, lines, output = supervised(tmp_path, capfd, "none")
    assert code == 0 and lines == [], output
    log = tmp_path / "supervisor.jsonl"
    code, lines, output = supervised(tmp_path, capfd, "kill", n_kills, log=log)
    assert code == 0 and "trained" in output, output
    assert len(lines) == n_kills, output
    # Saving and loading are calls of the pipeline as well, but no steps.
    assert all(re.search(r", after [12] steps?\. Starts", line) for line in lines), (
        lines
    )
    assert result(tmp_path, "kill") == result(tmp_path, "none")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["event"] for each in entries] == ["start", "end"] * (n_kills + 1)
    kinds = [each.get("kind") for each in entries[1::2]]
    assert kinds == ["lost"] * n_kills + ["finished"]

    code, (line,), output = supervised(tmp_path, capfd, "host", 1, hosts="a,b,c")
    assert code == 0 and "Starts 2 ranks (a:1, c:1) again" in line, output
    assert result(tmp_path, "host") == result(tmp_path, "none")

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


@pytest.mark.parametrize("number", [signal.SIGTERM, *matrix(signal.SIGKILL)])
def test_a_signal_ends_supervisor_and_ranks(tmp_path, number):
    given = ("run", "--keep-going", "-n", "2", "--launcher", launcher())
    command = divisible(*given, *arguments(tmp_path, "slow", 0))
    with running(command) as program:
        program.wait_for(lambda: "iteration 2\n" in program.output, 60)
        (line,) = told(program.output)
        assert line == f"'divisible control {program.process.pid}' reaches this run"
        os.kill(program.process.pid, number)
        code = program.wait(30)
        assert told(program.output) == [line], program.output
        program.wait_for(lambda: not program.processes(), 30)
        output = program.output
    if number == signal.SIGTERM:
        assert code == 75 and "a signal stopped the training" in output
    # What was saved is whole.
    assert latest_snapshot(tmp_path / "slow") is not None


def commanded(*words):
    """Returns the code and the output of ``divisible control``."""
    done = CliRunner().invoke(main, ["control", *map(str, words)])
    return done.exit_code, done.output


def test_a_lost_host_is_left_out_and_used_again_and_orders_are_obeyed(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    mpiexec = launcher_of_hosts(tmp_path, launcher())
    options = "--hosts", "a,b", "--shrink", "--control", run, "--log", log
    given = "run", "--keep-going", "-n", "2", "--launcher", mpiexec, *options
    script = arguments(tmp_path, "host", 1)
    # It saves for orders only, and has no end of its own.
    text = SCRIPT.replace("trigger=(1,", "trigger=(10**9,", 1)
    (tmp_path / "train.py").write_text(text.replace("(12,", "(10**9,"))
    with running(divisible(*given, *script)) as program:
        program.wait_for(lambda: program.output.count("iteration 1\n") == 2, 60)
        (line,) = told(program.output)[1:]
        assert "rank 1 on " in line and "killed by signal 9" in line
        assert "Starts 1 rank (a:1) again (b is out of reach); 4 more" in line
        assert "b is out of reach" in commanded(run, "grow")[1]
        (tmp_path / "down-b").unlink()
        code, output = commanded(run, "grow")
        assert code == 0 and "start again as 2 ranks (a:1, b:1)" in output, output
        program.wait_for(lambda: "goes on with 2 ranks\n" in program.output, 60)

        code, output = commanded(run, "save")
        assert code == 0, output
        (at,) = map(int, re.findall(r"saved in .*, at iteration (\d+)\n", output))
        assert latest_snapshot(tmp_path / "host").name == f"snapshot_iter_{at}"
        code, output = commanded(run, "status")
        words = "runs, on 2 ranks (a:1, b:1); start 3, 4 restarts left"
        assert code == 0 and words in output, output
        assert re.search(r"iteration \d+, epoch \d", output), output
        code, output = commanded(run, "stop")
        assert code == 0 and "stopped the training; saved in" in output, output
        assert program.wait(60) == 75
        assert program.output.count("stopped by divisible control after") == 2
    last = latest_snapshot(tmp_path / "host").name
    assert int(last.removeprefix("snapshot_iter_")) > at
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["kind"] for entry in entries[1::2]] == ["lost", "stopped", "stopped"]
    code, output = commanded(run, "save")
    assert code == 1 and "it has ended" in output
