"""A trainer's log reaches loggers of other projects."""

import warnings

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import training
from chainer.training import extensions

from divisible import Divisible, Plan
from pipeline import LoggerReport, Pipeline, PipelineUpdater, snapshot
from tests.support.mpiexec import assert_on_ranks


class Recorder:
    """A logger with ``log(values, step)``."""

    def __init__(self):
        self.got = []

    def log(self, values, step):
        self.got.append((step, values))


class Writer:
    """A logger with the methods of TensorBoard's ``SummaryWriter``."""

    def __init__(self):
        self.scalars, self.figures = {}, []

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def add_figure(self, name, figure, step):
        self.figures.append((name, step, len(figure.axes)))


class Tracking:
    """A logger with the functions of the module ``mlflow``."""

    def __init__(self):
        self.metrics, self.figures = [], []

    def log_metrics(self, values, step):
        self.metrics.append(step)

    def log_figure(self, figure, path):
        self.figures.append((path, len(figure.axes)))


class Broken:
    def log_metrics(self, values, step):
        raise ConnectionError("no route to host")


def trainer_on(comm, out, logger, n_epochs, timeline):
    chainer.global_config.autotune = False
    model = Divisible(L.Linear(4, 5), L.Linear(5, 3))
    stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    samples = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(8)]
    updater = PipelineUpdater(
        chainer.iterators.SerialIterator(samples, 4), optimizer, pipe
    )
    trainer = training.Trainer(updater, (n_epochs, "epoch"), out=out)
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    mine = logger if comm.rank == 0 else None
    trainer.extend(LoggerReport(mine, timeline=timeline))
    trainer.extend(snapshot(resume="auto"))
    return trainer


def train(comm, out):
    recorder = Recorder()
    trainer = trainer_on(comm, out, recorder, 2, timeline=False)
    trainer.run()
    log = trainer.get_extension("LogReport").log
    if comm.rank == 0:
        # All four iterations, with the very numbers of the log.
        assert [step for step, _ in recorder.got] == [1, 2, 3, 4]
        for (_, values), entry in zip(recorder.got, log):
            assert values["main/loss"] == entry["main/loss"]
    else:
        assert recorder.got == []

    # A resumed run hands over what is new, and the timeline of its last step.
    writer = Writer()
    trainer_on(comm, out, writer, 3, timeline=True).run()
    if comm.rank == 0:
        steps = {step for name, step in writer.scalars if name == "main/loss"}
        assert steps == {5, 6}
        assert writer.scalars["pipeline/rank_1/busy", 6] > 0
        assert 0 <= writer.scalars["pipeline/bubble", 6] < 1
        assert writer.figures == [("pipeline/timeline", 6, 1)]

    tracking = Tracking()
    trainer_on(comm, out, tracking, 4, timeline=True).run()
    if comm.rank == 0:
        assert tracking.metrics == [7, 8, 8]
        assert tracking.figures == [("pipeline/timeline_8.png", 1)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_on(comm, out, Broken(), 5, timeline=False).run()
    told = [str(each.message) for each in caught if "LoggerReport" in str(each.message)]
    assert len(told) == (comm.rank == 0)
    assert all("ConnectionError: no route to host" in text for text in told)


def test_loggers_get_the_numbers_of_the_log_once(tmp_path):
    pytest.importorskip("matplotlib")
    assert_on_ranks(2, train, str(tmp_path))


def test_a_logger_without_a_method_is_refused():
    with pytest.raises(TypeError, match="a list has none of the methods add_scalar"):
        LoggerReport([])
