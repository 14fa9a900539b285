"""Trainers that stop before their first minibatch, and the reason that they print."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, PipelineUpdater

SAMPLES = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(8)]


@pytest.mark.parametrize(
    "code, words",
    [
        (0, "nothing is left to do: the training is complete at iteration 2"),
        (7, "nothing is trained: request_stop(7) of this updater has ended"),
    ],
)
def test_the_reason_why_a_second_trainer_does_not_begin(tmp_path, capsys, code, words):
    pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=1)
    optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
    iterator = chainer.iterators.SerialIterator(SAMPLES, 4)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    first = Trainer(updater, (2, "iteration"), out=tmp_path)
    if code:
        first.extend(lambda _: updater.request_stop(code), name="stop")
    first.run()
    assert "nothing" not in capsys.readouterr().out
    length = 9 if code else 2
    Trainer(updater, (length, "iteration"), out=tmp_path).run()
    assert words in capsys.readouterr().out
    assert updater.iteration == 2
