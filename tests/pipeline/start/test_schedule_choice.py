"""The schedule of ``divisible run --schedule``, for scripts that say 'auto'."""

import subprocess
import sys

import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

from divisible import Divisible
from divisible.schedules import Schedule, gpipe, one_f_one_b
from pipeline import Pipeline
from pipeline.command_line.main import main
from pipeline.start.schedule_choice import VARIABLE

MINE = Schedule(gpipe(1, 4).actions, name="mine")
SCRIPT = f"import os\nprint(os.environ['{VARIABLE}'])\n"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.txt").write_text(f"{MINE}\n")
    return tmp_path / "mine.txt"


def stepped(**arguments):
    """Returns a pipeline on one rank, after a step."""
    model = Divisible(L.Linear(3, 3), L.Linear(3, 3))
    pipe = Pipeline(model, MPI.COMM_SELF, **arguments)
    pipe.step(np.ones((8, 3), np.float32), np.zeros(8, np.int32))
    return pipe


def test_a_script_that_says_auto_runs_the_file(path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(path))
    pipe = stepped(schedule="auto", n_microbatches=4)
    assert pipe.schedule == MINE
    assert pipe.schedule.name == "mine"


def test_a_name_is_given_in_the_same_way(monkeypatch):
    monkeypatch.setenv(VARIABLE, "zb_h1")
    assert stepped(schedule="auto", n_microbatches=4).schedule.name == "zb_h1"


def test_a_script_with_a_schedule_of_its_own_keeps_it(path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(path))
    for own in ("1f1b", one_f_one_b(1, 4)):
        with pytest.warns(UserWarning, match="give it schedule='auto' in the script"):
            pipe = stepped(schedule=own, n_microbatches=4)
        assert pipe.schedule.name == "1f1b"


@pytest.mark.parametrize(
    ("given", "n", "words"),
    [("none.txt", 4, "neither a file nor"), ("mine.txt", 8, "but the schedule has 4")],
)
def test_what_does_not_go_is_refused(path, monkeypatch, given, n, words):
    monkeypatch.setenv(VARIABLE, str(path.parent / given))
    with pytest.raises(ValueError, match=words):
        stepped(schedule="auto", n_microbatches=n)


def test_the_command_gives_the_path_to_the_script(path):
    script = path.parent / "script.py"
    script.write_text(SCRIPT)
    program = "import divisible_command as it; it.main()"
    command = [sys.executable, "-c", program, "run", "--schedule", path.name, script]
    result = subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{path}\n"


def test_the_command_refuses_a_schedule_before_the_script_begins(tmp_path):
    (tmp_path / "bad.txt").write_text(
        "a: 1 microbatch, 1 stage on rank 0\nrank 0 0B0 0F0"
    )
    for given, words in (("1f2b", "choose one of"), ("bad.txt", "0B0 runs before 0F0")):
        path = given if given == "1f2b" else str(tmp_path / given)
        result = CliRunner().invoke(main, ["run", "--schedule", path, "script.py"])
        assert result.exit_code == 2
        assert words in result.output
