"""``divisible control`` without a training; ``tests/mpi`` has those of trainings."""

import os
import threading
import time

import pytest
from click.testing import CliRunner

from divisible.communication import flight_files
from pipeline.command_line.control import remove_dead_directories
from pipeline.command_line.main import main
from pipeline.training import control_files
from pipeline.training.control_files import Progress, Run


@pytest.fixture
def folder(tmp_path):
    with control_files.opened(tmp_path / "run") as folder:
        yield folder


def control(*words):
    result = CliRunner().invoke(main, ["control", *map(str, words)])
    return result.exit_code, result.output


def test_a_stale_run_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    for run in (tmp_path / "no-run", "4711"):
        code, output = control(run, "save")
        assert code == 1 and "it has ended" in output and "No run" in output
        assert list(tmp_path.iterdir()) == []
    with control_files.opened(tmp_path / "run-815"):
        assert "Runs here: 815\n" in control("4711", "stop")[1]


def test_directories_of_supervisors_that_were_killed_long_ago_go(tmp_path, monkeypatch):
    monkeypatch.setenv(flight_files.VARIABLE, str(tmp_path))
    for name in ("run-1", "run-2", "results"):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("lock", "run.json", "a.order"):
            (folder / file).touch()
    with control_files.opened(tmp_path / "run-3") as living:
        for folder in (tmp_path / "run-1", tmp_path / "results", living):
            os.utime(folder, (0, time.time() - 2 * 24 * 3600))
        remove_dead_directories()
        left = sorted(each.name for each in tmp_path.iterdir())
        assert left == ["results", "run-2", "run-3"]


def test_words_that_are_no_orders_are_refused(folder):
    code, output = control(folder, "delete")
    assert code == 2 and "'delete'" in output
    assert control_files.take(folder) == []


def test_the_status_is_printed(folder):
    assert control(folder, "status") == (0, "the run is being started\n")
    run = Run(7, "node1", "train.py", "2 ranks", "runs", 3, 4, "rank 1 was\x1b[2J lost")
    control_files.write(folder, run)
    assert "no minibatch has been reported" in control(folder, "status")[1]
    control_files.write(folder, Progress(3, 40, 1.25, time.time(), 1, "saved in x"))
    code, output = control(folder, "status")
    assert code == 0
    assert output.splitlines()[:2] == [
        "train.py: process 7 on node1",
        "runs, on 2 ranks; start 3, 4 restarts left",
    ]
    assert "iteration 40, epoch 1.25, " in output and "saved in x" in output
    assert "last end: rank 1 was\\x1b[2J lost" in output


def test_an_answer_is_printed_or_its_absence_explained(folder):
    code, output = control(folder, "save", "--wait", "0.2")
    assert code == 1 and "rank 0 reads no orders" in output
    assert str(folder) in output.replace("\n", "")
    control_files.write(folder, Progress(1, 1, 0.1, time.time()))
    code, output = control(folder, "save", "--wait", "0.2")
    assert code == 1 and "The order stays" in output
    assert len(control_files.take(folder)) == 2

    def answer():
        while not (orders := control_files.take(folder)):
            time.sleep(0.01)
        control_files.answer(folder, *orders, "saved in x")

    thread = threading.Thread(target=answer)
    thread.start()
    assert control(folder, "save") == (0, "saved in x\n")
    thread.join()
    assert not any(name.endswith(".answer") for name in os.listdir(folder))
