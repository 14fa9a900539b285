"""A disk that is full ends no training, and changes no number of it."""

import contextlib
import io
import random
import sys
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer, extensions
from mpi4py import MPI

from divisible import Divisible
from mixed_precision.statistics import GradientStatistics
from pipeline import Pipeline, PipelineUpdater, Rebalance, TimelineReport
from pipeline.trainer_lines import say
from tests.support.faulty_files import Fault, faulty

X = np.random.RandomState(0).randn(12, 3).astype(np.float32)
SAMPLES = list(zip(X, np.arange(12, dtype=np.int32) % 2))
KEYS = ("epoch", "iteration", "main/loss")
ONCE, LATE = (1, "iteration"), (5, "iteration")


class FullPipe(io.StringIO):
    """A standard output on a disk that is full."""

    def write(self, text):
        raise OSError(28, "No space left on device")

    flush = write


def build():
    np.random.seed(1)
    return Divisible(L.Linear(3, 4), F.relu, L.Linear(4, 2))


def make_trainer(out):
    """Returns a trainer with all that writes, and its model."""
    model = build()
    optimizer = chainer.optimizers.Adam().setup(model)
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2, seed=3)
    iterator = chainer.iterators.SerialIterator(SAMPLES, 4, shuffle=False)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    trainer = Trainer(updater, (6, "iteration"), str(out))
    trainer.extend(extensions.LogReport(trigger=ONCE))
    trainer.extend(extensions.PrintReport(KEYS, out=sys.stdout))
    trainer.extend(extensions.ProgressBar(update_interval=1))
    trainer.extend(extensions.PlotReport(["main/loss"], trigger=LATE))
    trainer.extend(extensions.VariableStatisticsPlot(model, trigger=LATE))
    trainer.extend(TimelineReport("steps/{.updater.iteration}.json"), trigger=ONCE)
    trainer.extend(TimelineReport("{.updater.iteration}.svg"), trigger=LATE)
    trainer.extend(GradientStatistics(), trigger=LATE)
    trainer.extend(Rebalance(build, every=2))
    return trainer, model


def run(out, fault=None, stdout=None):
    """Trains, and returns weights and log, the calls, and the warnings."""
    out.mkdir(exist_ok=True)
    with contextlib.redirect_stdout(stdout or io.StringIO()):
        trainer, model = make_trainer(out)
        with faulty(out, fault) as files, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer.run()
            say(trainer, "the end")
    log = [
        {k: each[k] for k in KEYS} for each in trainer.get_extension("LogReport").log
    ]
    found = [str(each.message) for each in seen if each.category is UserWarning]
    weights = [param.array.copy() for param in model.params()]
    return weights, log, files.calls, found


def assert_equal(found, expected):
    for one, other in zip(found[0], expected[0]):
        np.testing.assert_array_equal(one, other)
    assert found[1] == expected[1]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What is trained where there is room."""
    found = run(tmp_path_factory.mktemp("out") / "result")
    assert len(found[1]) == 6
    assert not found[3]
    return found


def test_numbers_are_those_of_chainer(expected, tmp_path):
    """The log is that of Chainer's own trainer."""
    model = build()
    classifier = L.Classifier(model)
    optimizer = chainer.optimizers.Adam().setup(classifier)
    iterator = chainer.iterators.SerialIterator(SAMPLES, 4, shuffle=False)
    updater = chainer.training.StandardUpdater(iterator, optimizer)
    trainer = Trainer(updater, (6, "iteration"), str(tmp_path))
    trainer.extend(extensions.LogReport(trigger=ONCE))
    trainer.run()
    for mine, theirs in zip(expected[1], trainer.get_extension("LogReport").log):
        assert mine == pytest.approx({k: theirs[k] for k in KEYS}, rel=1e-5)


def test_a_full_disk_from_the_beginning(expected, tmp_path):
    found = run(tmp_path / "result", Fault("ENOSPC", 0, True), FullPipe())
    assert_equal(found, expected)
    kinds = {"LogReport", "PrintReport", "ProgressBar", "PlotReport", "lines for"}
    kinds |= {"VariableStatisticsPlot", "TimelineReport", "GradientStatistics"}
    kinds |= {"The log of Rebalance"}
    for kind in kinds:
        assert 1 <= sum(words.startswith(kind) for words in found[3]) <= 2, kind
    assert all("No space left on device" in words for words in found[3])


def faults(expected, kinds, n):
    every = [
        Fault(kind, at, lasts)
        for kind in kinds
        for at in range(len(expected[2]))
        for lasts in (False, True)
    ]
    return random.Random(0).sample(every, min(n, len(every)))


def test_a_disk_that_becomes_full(expected, tmp_path):
    for number, fault in enumerate(faults(expected, ["ENOSPC"], 2)):
        assert_equal(run(tmp_path / str(number), fault), expected)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["ENOSPC", "EDQUOT", "EIO", "ESTALE"])
def test_any_call_fails(expected, tmp_path, kind):
    for number, fault in enumerate(faults(expected, [kind], 100)):
        assert_equal(run(tmp_path / str(number), fault), expected)
