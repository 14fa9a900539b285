"""The records of a run that did not end well name what each rank was at."""

import os
import re
import signal
import time

import chainer
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner

from divisible import Divisible
from divisible.communication.flight_files import VARIABLE, logs
from divisible.communication.flight_report import state
from pipeline import Pipeline
from pipeline.command_line.main import main
from tests.support.loaded_python import loaded_project
from tests.support.mpiexec import worker
from tests.support.processes import launcher, running

DEADLINE = 10
START_UP = 20
PATIENCE = 1000


class Troubled(chainer.Link):
    """Does something in the second microbatch of a minibatch."""

    def __init__(self):
        super().__init__()
        self.does, self.n_calls = None, 0

    def forward(self, x):
        if self.does is not None:
            self.n_calls += 1
            if self.n_calls == 2:
                self.does()
        return x


def fail():
    raise ArithmeticError("it spills")


def hang():
    print(f"hangs in process {os.getpid()}", flush=True)
    time.sleep(1000)


def train(comm, how):
    model = Divisible(L.Linear(4, 4), Troubled(), L.Linear(4, 3), Troubled())
    stage = model.divide(2 * comm.rank, 2 * comm.rank + 2)
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    timeout = 1 if how == "stall" else PATIENCE
    pipe = Pipeline(stage, comm, n_microbatches=3, timeout=60)
    for i in range(5):
        if i == 3 and how != "end":
            pipe.internals.ranks.calls._timeout = (
                pipe.internals.step.runner._transport.timeout
            ) = timeout
            if comm.rank == 1:
                stage[1].does = fail if how == "raise" else hang
        pipe.step(np.ones((6, 4), np.float32), np.zeros(6, np.int32))
        optimizer.update()


def waits_in_step_4(folder):
    """Returns whether rank 0 waits for rank 1 there, by its record."""
    (job,) = folder.iterdir()
    of_0 = state(logs(job)[0])
    return (of_0.call, of_0.waits_for) == (4, 1)


@pytest.mark.parametrize(
    "how",
    ["kill", "raise", "stall", pytest.param("end", marks=pytest.mark.matrix)],
)
def test_a_record_is_left_that_names_the_action(how, tmp_path):
    command = [launcher(), "-n", "2", *loaded_project(), *worker(train, how)]
    with running(command, {VARIABLE: str(tmp_path)}) as program:
        if how == "kill":
            found = program.wait_for(
                lambda: re.search(r"hangs in process (\d+)", program.output), START_UP
            )
            program.wait_for(lambda: waits_in_step_4(tmp_path), DEADLINE)
            os.kill(int(found[1]), signal.SIGKILL)
        returned = program.wait(START_UP + DEADLINE)
        output = program.output
    if how == "end":
        assert returned == 0 and not list(tmp_path.iterdir()), output
        return
    assert returned != 0
    (job,) = tmp_path.iterdir()
    of_0, of_1 = map(state, logs(job))
    assert (of_0.call, of_0.call_name, of_0.waits_for) == (4, "step", 1)
    assert of_1.call == 4
    what = "it failed: ActionError: 1F1" if how == "raise" else "it began 1F1, and did"
    behind = f"rank 1 is behind: in call 4, step, {what}"
    # Where a rank has failed, its traceback says so.
    assert (behind in output) == (how == "stall"), output
    if how != "kill":
        assert f"divisible flight-record {job}" in output
        # What is to be read first is still the last.
        assert output.index("divisible flight-record") < output.rindex("Error: ")
    result = CliRunner().invoke(main, ["flight-record", str(job), "--last", "4"])
    assert result.exit_code == 0, result.output
    assert behind in result.output
    assert re.search(r"1 +4 step +begins 1F1 *$", result.output, re.MULTILINE)


def test_a_directory_without_records_is_refused(tmp_path):
    result = CliRunner().invoke(main, ["flight-record", str(tmp_path)])
    assert result.exit_code == 1
    assert f"there are no flight records in {tmp_path}" in result.output
    (tmp_path / "rank-0.flight").write_bytes(b"something else")
    result = CliRunner().invoke(main, ["flight-record", str(tmp_path)])
    assert f"{tmp_path}/rank-0.flight is no flight record" in result.output
