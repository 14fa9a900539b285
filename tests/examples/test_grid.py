"""The example of a grid trains alike on every grid, and goes on after a signal."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from divisible import Plan
from divisible.schedules import gpipe
from pipeline import latest_snapshot
from tests.support.loaded_python import loaded_project
from tests.support.mpiexec import mpiexec
from tests.support.processes import launcher, running

SCRIPT = "examples/grid/train.py"
QUICK = ["--width", "8", "--epoch", "2"]


def train(n, out, *argv):
    """Returns what the script prints, and its log."""
    result = mpiexec(n, [SCRIPT, *QUICK, "--out", out, *argv], has_project=True)
    assert result.returncode == 0, result.stdout
    assert "Warning" not in result.stdout, result.stdout
    return result.stdout, json.loads((out / "log").read_text())


def assert_alike(log, expected):
    # Between ranks of one host nothing is coded.
    assert len(log) == len(expected) == 2
    for ours, theirs in zip(log, expected):
        for name in ("main/loss", "validation/main/loss", "validation/main/accuracy"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3)


def divisible_run(n, path, out):
    command = ["-c", "import divisible_command as it; it.main()", "run", "--plan", path]
    result = mpiexec(n, [*command, SCRIPT, *QUICK, "--out", out])
    assert result.returncode == 0, result.stdout
    return result.stdout, json.loads((out / "log").read_text())


def test_any_plan_trains_as_one_rank(tmp_path):
    """Also with several stages on a rank, and replicas of unequal shares."""
    _, expected = train(1, tmp_path / "1", "--stages", "1")
    assert expected[1]["main/loss"] < expected[0]["main/loss"]
    plan = Plan(
        [0, 3, 5, 8, 13], 2, "zb_v", stages_per_rank=2, replicas=2, shares=[1, 1.01]
    )
    plan.save(tmp_path / "plan.json")
    output, log = divisible_run(4, tmp_path / "plan.json", tmp_path / "planned")
    assert "by divisible run --plan: 13 layers cut at [0, 3, 5, 8, 13]" in output
    assert "2 replicas with shares 1:1.01" in output
    assert_alike(log, expected)


@pytest.mark.matrix
def test_the_script_plans_by_itself(tmp_path):
    result = mpiexec(2, [SCRIPT, *QUICK, "--out", tmp_path])
    assert result.returncode == 0, result.stdout
    assert "plan='auto': rank 0 measured 13 layers" in result.stdout
    assert len(json.loads((tmp_path / "log").read_text())) == 2


@pytest.mark.matrix
@pytest.mark.parametrize(
    "argv, words",
    [
        (
            ["--stages", "4", "--schedule", "mine.txt"],
            "13 layers in 4 stages on 4 ranks, gpipe schedule, 4 microbatches",
        ),
        (["--stages", "1", "--exchange-dtype", "int8"], "4 replicas, which exchange"),
    ],
)
def test_every_grid_trains_as_one_rank(tmp_path, argv, words):
    _, expected = train(1, tmp_path / "1", "--stages", "1")
    (tmp_path / "mine.txt").write_text(str(gpipe(4, 4)))
    argv = [tmp_path / each if each == "mine.txt" else each for each in argv]
    output, log = train(4, tmp_path / "4", *argv)
    assert words in output
    assert_alike(log, expected)


def process_of(program, rank):
    """Returns the process of a rank, which MPI tells it by its environment."""
    told = {f"{name}={rank}".encode() for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")}
    (found,) = (
        pid
        for pid in program.processes()
        if told & set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    )
    return found


def test_a_signal_to_one_rank_saves_and_the_run_goes_on_elsewhere(tmp_path):
    long = ["--width", "8", "--epoch", "1000", "--out", str(tmp_path)]
    command = [launcher(), "-n", "4", *loaded_project(), SCRIPT, *long]
    with running([*command, "--stages", "2"]) as program:
        program.wait_for(lambda: (tmp_path / "log").exists(), 30)
        os.kill(process_of(program, 3), signal.SIGTERM)
        assert program.wait(20) == 0, program.output
        assert "stopped by signal 15: --resume auto goes on" in program.output
    path = latest_snapshot(tmp_path)
    iteration = int(re.search(r"_(\d+)$", str(path))[1])
    epochs = json.loads((tmp_path / "log").read_text())[-1]["epoch"]
    argv = [SCRIPT, *long, "--resume", "auto", "--stages", "1"]
    argv[argv.index("1000")] = str(epochs + 1)
    result = mpiexec(3, argv, has_project=True)
    assert result.returncode == 0, result.stdout
    log = json.loads((tmp_path / "log").read_text())
    assert [entry["epoch"] for entry in log] == list(range(1, epochs + 2))
    assert log[-1]["iteration"] == 24 * (epochs + 1) > iteration
