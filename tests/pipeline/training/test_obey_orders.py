"""Orders to a training on one rank; tests/mpi has supervised runs."""

import os

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import training
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, PipelineUpdater, memory_copies, snapshot
from pipeline.training import control_files, obey_orders, signals
from pipeline.training.control_files import Progress, Wishes


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A function that trains six iterations, with a function called after each."""
    monkeypatch.setattr(obey_orders, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(signals, "_has_stopped", False)
    monkeypatch.setattr(signals, "_stopped_by", "a signal")
    monkeypatch.setenv(control_files.VARIABLE, str(tmp_path))

    def run(happen, saves=True, copies=False, **options):
        stage = Divisible(L.Linear(3, 2))
        optimizer = chainer.optimizers.SGD().setup(stage)
        samples = [(np.ones(3, np.float32), np.int32(0))] * 8
        iterator = chainer.iterators.SerialIterator(samples, 4)
        with Pipeline(stage, MPI.COMM_SELF, n_microbatches=2) as pipe:
            updater = PipelineUpdater(iterator, optimizer, pipe)
            trainer = training.Trainer(updater, (6, "iteration"), tmp_path / "out")
            if saves:
                trainer.extend(snapshot(**options), trigger=(100, "iteration"))
            if copies:
                (tmp_path / "memory").mkdir()
                trainer.extend(memory_copies(directory=tmp_path / "memory"))
            trainer.extend(happen, trigger=(1, "iteration"), priority=10)
            trainer.run()
        return updater.iteration

    return run


def saved(tmp_path):
    folder = tmp_path / "out"
    found = os.listdir(folder) if folder.exists() else []
    return sorted(name for name in found if name.startswith("snapshot"))


@pytest.mark.parametrize("background", [False, True])
def test_an_order_saves_once_and_the_training_goes_on(train, tmp_path, background):
    control_files.write(tmp_path, Wishes(4))

    def happen(trainer):
        at = trainer.updater.iteration
        if at in (2, 4):
            control_files.write(tmp_path, Wishes(4, saves=at // 2))

    assert train(happen, background=background) == 6
    # One rank knows what it wants after the next minibatch.
    assert saved(tmp_path) == ["snapshot_iter_3", "snapshot_iter_5"]
    progress = control_files.read(tmp_path, Progress)
    assert (progress.start, progress.iteration) == (4, 6)
    # In the background, a snapshot may take longer than the training.
    assert progress.saves == 2 or (background and progress.saves < 2)
    assert background or progress.words.endswith("snapshot_iter_5, at iteration 5")
    assert not signals.has_stopped()


@pytest.mark.parametrize("background", [False, True])
def test_an_order_stops_with_a_snapshot(train, tmp_path, capsys, background):
    control_files.write(tmp_path, Wishes(1))

    def happen(trainer):
        if trainer.updater.iteration == 2:
            control_files.write(tmp_path, Wishes(1, stop=True))

    assert train(happen, background=background) == 3
    words = control_files.read(tmp_path, Progress).words
    assert words.endswith("snapshot_iter_3, at iteration 3")
    assert saved(tmp_path) == ["snapshot_iter_3"]
    assert signals.has_stopped() and signals.stopped_by() == "divisible control"
    out = capsys.readouterr().out
    assert "stopped by divisible control after iteration 3: saved in" in out


def test_a_training_that_cannot_save_says_so(train, tmp_path):
    control_files.write(tmp_path, Wishes(1, saves=1))
    assert train(lambda trainer: None, saves=False) == 6
    words = control_files.read(tmp_path, Progress).words
    assert words.startswith("nothing was saved. Extend the trainer with")


def test_an_order_stops_with_a_copy_in_memory_if_there_is_no_snapshot(
    train, tmp_path, capsys
):
    control_files.write(tmp_path, Wishes(1))

    def happen(trainer):
        if trainer.updater.iteration == 2:
            control_files.write(tmp_path, Wishes(1, stop=True))

    assert train(happen, saves=False, copies=True) == 3
    assert os.listdir(tmp_path / "memory")
    words = "a copy stays in the memory of hosts"
    assert control_files.read(tmp_path, Progress).words == f"{words}, at iteration 3"
    out = capsys.readouterr().out
    assert f"iteration 3: {words}; to go on, start the same command again" in out


def test_orders_to_another_start_are_not_obeyed(train, tmp_path):
    control_files.write(tmp_path, Wishes(1))

    def happen(trainer):
        control_files.write(tmp_path, Wishes(2, saves=1, stop=True))

    assert train(happen) == 6 and saved(tmp_path) == []


def test_nothing_is_added_to_a_trainer_without_a_supervisor(train, monkeypatch):
    monkeypatch.delenv(control_files.VARIABLE)
    names = []
    train(lambda trainer: names.extend(trainer._extensions))
    assert "snapshot" in names and "obey_orders" not in names


def test_a_snapshot_that_fails_is_no_snapshot(train, tmp_path):
    control_files.write(tmp_path, Wishes(1, saves=1))
    (tmp_path / "out").write_text("no folder")
    with pytest.warns(UserWarning, match="training goes on"):
        assert train(lambda trainer: None, on_error="warn") == 6
    progress = control_files.read(tmp_path, Progress)
    assert progress.saves == 1 and progress.words.startswith("nothing was saved, for")
