"""Stopping on signals, on one rank; tests/mpi/pipeline/test_life.py has several."""

import os
import re
import signal

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import training
from chainer.training import extensions
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, PipelineUpdater, StopOnSignal, snapshot
from pipeline.training import signals
from tests.support.terminal import screen


@pytest.fixture
def updater(monkeypatch):
    monkeypatch.setattr(signals, "_has_stopped", False)
    stage = Divisible(L.Linear(3, 2))
    optimizer = chainer.optimizers.SGD().setup(stage)
    samples = [(np.ones(3, np.float32), np.int32(0))] * 8
    iterator = chainer.iterators.SerialIterator(samples, 4)
    with Pipeline(stage, MPI.COMM_SELF, n_microbatches=2) as pipe:
        yield PipelineUpdater(iterator, optimizer, pipe)


def train(updater, out, stop, happen, snapshot_interval=1000):
    trainer = training.Trainer(updater, (6, "iteration"), out=str(out))
    trainer.extend(happen)
    trainer.extend(extensions.snapshot(), trigger=(snapshot_interval, "iteration"))
    trainer.extend(stop)
    trainer.run()


@pytest.mark.parametrize("interval", [1000, 1])
def test_the_minibatch_is_finished_and_saved(updater, interval, tmp_path):
    def happen(trainer):
        if updater.iteration == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    stop = StopOnSignal()
    train(updater, tmp_path, stop, happen, interval)
    assert stop.signal == signal.SIGUSR1
    # It came after the second minibatch had been agreed on.
    assert updater.iteration == 3
    assert (tmp_path / "snapshot_iter_3").exists()
    assert len(os.listdir(tmp_path)) == (1 if interval == 1000 else 3)
    assert signals.has_stopped()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_second_signal_does_what_it_does_without(updater, tmp_path):
    came = []
    before = signal.signal(signal.SIGTERM, lambda *args: came.append(args))
    try:

        def happen(trainer):
            os.kill(os.getpid(), signal.SIGTERM)
            assert not came
            os.kill(os.getpid(), signal.SIGTERM)
            assert len(came) == 1

        with pytest.raises(AssertionError):
            # The second minibatch finds one more.
            train(updater, tmp_path, StopOnSignal(), happen)
        assert len(came) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_no_signal_is_no_stop(updater, tmp_path):
    stop = StopOnSignal(run=["snapshot"])
    train(updater, tmp_path, stop, lambda trainer: None)
    assert (stop.signal, updater.iteration) == (0, 6)
    assert os.listdir(tmp_path) == []
    assert not signals.has_stopped()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("resume", ["auto", None])
def test_a_stop_and_a_resume_are_told(updater, tmp_path, capsys, resume, background):
    def happen(trainer):
        if trainer.updater.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    def run(resume):
        iterator = updater.get_iterator("main")
        iterator.reset()
        optimizer, pipe = updater.get_optimizer("main"), updater.pipeline
        again = PipelineUpdater(iterator, optimizer, pipe)
        trainer = training.Trainer(again, (6, "iteration"), out=str(tmp_path))
        trainer.extend(extensions.ProgressBar(update_interval=1))
        trainer.extend(happen)
        trainer.extend(
            snapshot(resume=resume, background=background), trigger=(50, "iteration")
        )
        trainer.extend(StopOnSignal())
        trainer.run()
        assert again.iteration == (6 if resume == path else 3)
        return capsys.readouterr().out

    path = tmp_path / "snapshot_iter_3"
    again = "start the same command again"
    if resume is None:
        again = f"start with snapshot(resume='{path}')"
    words = f"stopped by SIGTERM after iteration 3: saved in {path}; to go on, {again}"
    assert screen(run(resume)).count(words) == 1
    out = "\n".join(screen(run(path)))
    words = rf"resumed from {path}: iteration 3, saved \d+ seconds? ago on 1 rank; the"
    assert re.search(rf"{words} training goes on with 1 rank\n", out)
    assert "stopped by" not in out


def test_a_stop_without_a_snapshot_is_told(updater, tmp_path, capsys):
    trainer = training.Trainer(updater, (6, "iteration"), out=str(tmp_path))
    trainer.extend(lambda trainer: updater.request_stop(signal.SIGTERM), name="stop")
    trainer.extend(StopOnSignal())
    trainer.run()
    out = capsys.readouterr().out
    assert "stopped by SIGTERM after iteration 2: nothing was saved. Extend" in out


def test_it_needs_a_pipeline_updater():
    trainer = training.Trainer.__new__(training.Trainer)
    trainer.updater = object()
    with pytest.raises(TypeError, match="needs a trainer with a PipelineUpdater"):
        StopOnSignal().initialize(trainer)
