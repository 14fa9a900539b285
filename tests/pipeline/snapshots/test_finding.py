"""Series of snapshots whose names have folders: their order, and how many stay."""

import time

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.iterators import SerialIterator
from chainer.training import Trainer
from mpi4py import MPI

from divisible import Divisible
from pipeline import (
    Pipeline,
    PipelineUpdater,
    save_snapshot,
    snapshot,
)

X, T = np.ones((4, 3), "f"), np.zeros(4, "i")
FILENAME = "e{0.updater.epoch}/iter_{0.updater.iteration}"


@pytest.fixture
def set_clock(monkeypatch):
    return lambda now: monkeypatch.setattr(time, "time", lambda: now)


def make_run():
    model = Divisible(L.Linear(3, 2))
    return Pipeline(model, MPI.COMM_SELF, n_microbatches=2), optimizers.SGD().setup(
        model
    )


def make_trainer(out, n_iterations, **options):
    pipe, optimizer = make_run()
    updater = PipelineUpdater(SerialIterator(list(zip(X, T)), 4), optimizer, pipe)
    trainer = Trainer(updater, (n_iterations, "iteration"), out)
    extension = snapshot(options.pop("filename", FILENAME), **options)
    trainer.extend(extension, trigger=(1, "iteration"))
    return trainer, extension


def saved_in(out):
    return sorted(str(path.parent.relative_to(out)) for path in out.rglob("*.json"))


@pytest.mark.parametrize("background", [False, True])
def test_a_trainer_keeps_as_many_as_it_is_told_across_folders(tmp_path, background):
    (tmp_path / "other").mkdir()
    save_snapshot(tmp_path / "other" / "iter_1", *make_run())
    options = {"n_retains": 2, "background": background}
    trainer, _ = make_trainer(tmp_path, 3, **options)
    trainer.run()
    assert saved_in(tmp_path) == ["e2/iter_2", "e3/iter_3", "other/iter_1"]
    trainer, extension = make_trainer(tmp_path, 5, resume="auto", **options)
    trainer.run()
    assert extension.resumed_from == tmp_path / "e3/iter_3"
    assert saved_in(tmp_path) == ["e4/iter_4", "e5/iter_5", "other/iter_1"]


def test_a_trainer_that_begins_anew_is_newer_across_folders(tmp_path, set_clock):
    for now, n_iterations in ((5e9, 3), (1e9, 1)):
        set_clock(now)
        make_trainer(tmp_path, n_iterations)[0].run()
    trainer, extension = make_trainer(tmp_path, 2, resume="auto")
    trainer.run()
    assert extension.resumed_from == tmp_path / "e1/iter_1"


@pytest.mark.parametrize("filename", ["./a//iter_{.updater.iteration}", "iter_1"])
def test_names_that_are_written_in_another_way_are_found(tmp_path, filename):
    make_trainer(tmp_path, 1, filename=filename, n_retains=1)[0].run()
    options = {"filename": filename, "n_retains": 1, "resume": "auto"}
    trainer, extension = make_trainer(tmp_path, 2, **options)
    trainer.run()
    assert extension.resumed_from.name == "iter_1"
    assert len(saved_in(tmp_path)) == 1
