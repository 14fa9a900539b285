"""Under ``divisible run`` a rank that is killed is named, with what it held."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from divisible.communication.flight_files import VARIABLE
from pipeline.command_line.main import main
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT, launcher, running

# From the start of Python on.
DEADLINE = 20
COMMAND = "import sys, divisible_command; sys.exit(divisible_command.main())"

KILLED = """
import os, signal
import chainer.links as L, numpy as np
from mpi4py import MPI
from divisible import Divisible
from pipeline import Pipeline

comm = MPI.COMM_WORLD
stage = Divisible(L.Linear(4, 4), L.Linear(4, 3)).divide(comm.rank, comm.rank + 1)
pipe = Pipeline(stage, comm, n_microbatches=2, timeout=1000)
held = np.ones(50 << 20, np.uint8)
for i in range(6):
    if i == 3 and comm.rank == 1:
        os.kill(os.getpid(), signal.SIG{name})
    pipe.step(np.ones((6, 4), "f"), np.zeros(6, "i"))
"""
OTHERS = [pytest.param(name, marks=pytest.mark.matrix) for name in ("SEGV", "ABRT")]


@pytest.mark.parametrize("name", ["KILL", *OTHERS])
def test_a_rank_that_is_killed_is_named(name, tmp_path):
    script, records = tmp_path / "train.py", tmp_path / "records"
    script.write_text(KILLED.format(name=name))
    argv = ["-c", COMMAND, "run", script]
    result = mpiexec(2, argv, timeout=DEADLINE, env={VARIABLE: str(records)})
    assert result.returncode != 0
    number = signal.Signals[f"SIG{name}"].value
    host = re.escape(socket.gethostname())
    what = f"killed by signal {number}"
    what += ": out of memory\\?" if name == "KILL" else f", SIG{name}."
    found = re.search(
        rf"rank 1 of 2 on {host}, process \d+, was {what} It held ([\d.]+) GB at most,"
        rf" and this host has [\d.]+ GB",
        result.stdout,
    )
    assert found, result.stdout
    assert float(found[1]) > 0.05
    assert "rank 0 of 2" not in result.stdout
    (job,) = records.iterdir()
    assert f"divisible flight-record {job}" in result.stdout
    # Later as well, and by itself.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(records))
        shown = CliRunner().invoke(main, ["flight-record"])
    behind = f"rank 1 is behind: in call 3, step, it failed: {what}"
    assert re.search(behind, shown.output), shown.output


SIGNALLED = """
import signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("is ready", flush=True)
while not heard:
    time.sleep(0.01)
# A second one would come by now.
time.sleep(0.3)
print(f"heard {{len(heard)}}", flush=True)
if {is_regular}:
    sys.exit(0)
time.sleep(1000)
"""


def test_a_signal_to_all_reaches_each_rank_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SIGNALLED.format(is_regular=True))
    command = [launcher(), "-n", "2", sys.executable, "-c", COMMAND, "run", str(script)]
    with running(command) as program:
        program.wait_for(lambda: program.output.count("is ready") == 2, DEADLINE)
        program.process.send_signal(signal.SIGTERM)
        assert program.wait(DEADLINE) == 0, program.output
        assert program.output.count("heard 1\n") == 2, program.output


FORKED = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
os.environ.update(PMI_RANK="1", PMI_SIZE="2")
from divisible.communication.guard import guard_rank
guard_rank()
print(os.getpid(), flush=True)
{end}
"""


def guarded(end, start=""):
    environment = {k: v for k, v in os.environ.items() if k != "PMI_FD"}
    return subprocess.Popen(
        [sys.executable, "-c", start + FORKED.format(root=str(ROOT), end=end)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "end, code",
    [
        ("", 0),
        ("sys.exit(75)", 75),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_the_guard_ends_as_the_rank_does(end, code):
    process = guarded(end)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("rank 1 of 2" in errors) == (code == -signal.SIGKILL)


def test_the_guard_learns_the_end_where_ends_of_children_are_ignored():
    start = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    # What the rank was started with is its own affair.
    end = "sys.exit(75 if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else 1)"
    process = guarded(end, start)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")


def test_the_end_of_the_guard_ends_the_rank():
    process = guarded("time.sleep(1000)")
    rank = int(process.stdout.readline())
    assert rank != process.pid
    process.kill()
    # The rank has the other end of the pipe, which its end closes.
    process.communicate(timeout=60)
