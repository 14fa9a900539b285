"""One rank writes its state, seldom enough, and trains on if it cannot."""

import time
import warnings
from types import SimpleNamespace

import chainer
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, Plan
from divisible.planning.expected_costs import StagePlan
from pipeline import Pipeline, PipelineUpdater, ProgressLine, RunStatus
from pipeline.training import signals
from pipeline.watching import run_status
from pipeline.watching.events import journal_of
from pipeline.watching.planned import Planned, planned_of
from pipeline.watching.process_counters import Counters, ProcessCounters
from pipeline.watching.status_files import RankStatus

X, T = np.ones((6, 4), np.float32), np.zeros(6, np.int32)


@pytest.fixture
def pipe():
    with Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2) as pipe:
        yield pipe


class Clock:
    """A clock that goes on only when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        told = SimpleNamespace(perf_counter=lambda: self.now, time=time.time)
        monkeypatch.setattr(run_status, "time", told)
        none = Counters(0.0, 0.0, 0.0)
        monkeypatch.setattr(ProcessCounters, "read", lambda counters: none)


def test_files_are_written_twice_a_second_at_most(tmp_path, monkeypatch, pipe):
    clock, written = Clock(monkeypatch), []
    monkeypatch.setattr(RankStatus, "write", lambda *args: written.append(clock.now))
    status = RunStatus(pipe, tmp_path, line=False)
    result = pipe.step(X, T)
    for _ in range(1000):
        clock.now += 0.01
        status.note(result)
    # Ten seconds, and the one at the beginning.
    assert 19 <= len(written) <= 22
    assert np.diff(written[1:]).min() >= 0.5


def test_a_slow_file_system_gets_fewer_files(tmp_path, monkeypatch, pipe):
    clock, written = Clock(monkeypatch), []

    def write(*args):
        written.append(clock.now)
        clock.now += 0.1

    monkeypatch.setattr(RankStatus, "write", write)
    status = RunStatus(pipe, tmp_path, line=False)
    result = pipe.step(X, T)
    for _ in range(30_000):
        clock.now += 0.01
        status.note(result)
    # A five-hundredth of five minutes is for files of a tenth of a second.
    assert 5 <= len(written) <= 8


def test_a_disk_that_fails_ends_no_training(tmp_path, pipe):
    (tmp_path / "result").write_text("a file in the place of the folder")
    with (
        pytest.warns(UserWarning) as caught,
        RunStatus(pipe, tmp_path / "result", line=False) as status,
    ):
        for _ in range(3):
            status._next_file = 0.0
            status.note(pipe.step(X, T))
        warnings.warn("another one", stacklevel=1)
    first, second = (str(each.message) for each in caught)
    assert first.startswith("the state of the run cannot be written to")
    assert second == "another one"


def test_no_file_lies_beside_the_folder_of_the_ranks(tmp_path, pipe):
    out = tmp_path / "result"
    out.write_text("a file in the place of the folder")
    with pytest.warns(UserWarning):
        status = RunStatus(pipe, out, line=False)
    out.unlink()
    out.mkdir()
    with status:
        status.note(pipe.step(X, T))
    assert list(out.iterdir()) == []


def test_a_loss_that_is_not_a_number_is_no_number_in_the_file(tmp_path, pipe):
    with RunStatus(pipe, tmp_path, line=False) as status:
        status.note({**pipe.step(X, T), "nan": float("nan"), "text": "a"})
    values = RankStatus.load(tmp_path / "ranks" / "rank-0.json").values
    assert set(values) == {"loss", "accuracy", "nan"}
    assert values["nan"] is None
    assert values["loss"] > 0


def test_warnings_and_the_end_are_in_the_journal(tmp_path, pipe):
    show = warnings.showwarning
    with (
        pytest.raises(KeyError),
        pytest.warns(UserWarning),
        RunStatus(pipe, tmp_path, line=False),
    ):
        for _ in range(3):
            warnings.warn("the disk is nearly full", stacklevel=1)
        raise KeyError("x")
    assert warnings.showwarning is show
    entries = [(entry.event, entry.text) for entry in journal_of(tmp_path)]
    assert entries[1:] == [
        ("warning", "UserWarning: the disk is nearly full"),
        ("end", "KeyError: 'x'"),
    ]


def test_epochs_may_be_numbers_of_numpy(tmp_path, pipe):
    with RunStatus(pipe, tmp_path, line=False) as status:
        status.note(pipe.step(X, T), epoch=np.float32(1.5), share=np.float32(0.25))
    found = RankStatus.load(tmp_path / "ranks" / "rank-0.json")
    assert (found.epoch, found.share) == (1.5, 0.25)


def test_a_trainer_needs_an_updater_with_a_pipeline(tmp_path):
    iterator = chainer.iterators.SerialIterator([(X[0], T[0])], 1)
    optimizer = chainer.optimizers.SGD().setup(L.Classifier(L.Linear(4, 3)))
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    trainer = chainer.training.Trainer(updater, (1, "epoch"), out=tmp_path)
    trainer.extend(ProgressLine())
    with pytest.raises(TypeError, match="PipelineUpdater, not a StandardUpdater"):
        trainer.run()


def test_a_run_that_is_stopped_has_not_finished(tmp_path, pipe, monkeypatch):
    # The process remembers the stop.
    monkeypatch.setattr(signals, "_has_stopped", False)
    optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
    iterator = chainer.iterators.SerialIterator([(X[0], T[0])] * 6, 6)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    trainer = chainer.training.Trainer(updater, (100, "iteration"), out=tmp_path)
    trainer.extend(ProgressLine(line=False))
    trainer.extend(
        lambda trainer: updater.request_stop(), name="stop", trigger=(2, "iteration")
    )
    trainer.run()
    end = journal_of(tmp_path)[-1]
    assert (end.event, end.text) == ("end", "stopped before its end, on request")
    assert end.facts["step"] < 100


def test_a_number_of_steps_below_one_is_refused(tmp_path, pipe):
    with pytest.raises(ValueError, match="n_steps must be 1 or more, not 0"):
        RunStatus(pipe, tmp_path, n_steps=0)
    assert list(tmp_path.iterdir()) == []


def test_predictions_are_of_all_microbatches_of_this_ranks_stages():
    plan = Plan(
        [0, 1],
        n_microbatches=2,
        schedule="1f1b",
        stages=[StagePlan(0.25, 0.0, 1)],
        step_seconds=0.6,
        bubble=0.0,
    )
    with Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, plan=plan) as pipe:
        assert planned_of(pipe) == Planned(0.6, 0.0, 0.5)
