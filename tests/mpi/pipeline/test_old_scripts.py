"""Scripts with layers without input sizes train as they did before they were cut."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training.updaters import StandardUpdater

from divisible import Plan, from_chain
from pipeline import Pipeline, PipelineUpdater
from tests.support.mpiexec import assert_on_ranks

_rng = np.random.RandomState(0)
SAMPLES = [
    (_rng.rand(1, 8, 8).astype(np.float32), np.int32(_rng.randint(5)))
    for _ in range(40)
]
WORDS = [
    (_rng.randint(0, 9, 6).astype(np.int32), np.int32(_rng.randint(5)))
    for _ in range(40)
]


class MLP(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 20)
            self.l2 = L.Linear(None, 20)
            self.l3 = L.Linear(None, 5)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


class CNN(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(None, 4, 3)
            self.conv2 = L.Convolution2D(None, 6, 3)
            self.fc = L.Linear(None, 5)

    def forward(self, x):
        h = F.max_pooling_2d(F.relu(self.conv1(x)), 2)
        h = F.relu(self.conv2(h))
        h = F.average_pooling_2d(h, h.shape[2:])
        return self.fc(h.reshape(len(h), -1))


class Reader(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(9, 12)
            self.fc1 = L.Linear(None, 12)
            self.fc2 = L.Linear(None, 5)

    def forward(self, x):
        return self.fc2(F.tanh(self.fc1(F.mean(self.embed(x), axis=1))))


SCRIPTS = {"mlp": (MLP, SAMPLES), "cnn": (CNN, SAMPLES), "reader": (Reader, WORDS)}


def losses(updater):
    """The losses of two epochs, of which the second is shuffled again."""
    found = []
    reporter = chainer.Reporter()
    reporter.add_observer("main", updater.get_optimizer("main").target)
    for _ in range(10):
        observation = {}
        with reporter.scope(observation):
            updater.update()
        loss = observation["main/loss"]
        found.append(float(getattr(loss, "array", loss)))
    return found


def serial(make, samples):
    np.random.seed(1)
    model = L.Classifier(make())
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    iterator = chainer.iterators.SerialIterator(samples, 8)
    return losses(StandardUpdater(iterator, optimizer))


def ported(comm, make, samples, is_first):
    """The script on a pipeline, with from_chain before or after the iterator."""
    np.random.seed(1)
    chain = make()
    example = np.stack([x for x, _ in samples[:3]])
    if is_first:
        model = from_chain(chain, example)
    iterator = chainer.iterators.SerialIterator(samples, 8)
    if not is_first:
        model = from_chain(chain, example)
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = losses(PipelineUpdater(iterator, optimizer, pipe))
    return found, [str(each.message) for each in caught]


def check_scripts(comm):
    for make, samples in SCRIPTS.values():
        expected = serial(make, samples)
        found, said = ported(comm, make, samples, is_first=False)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert not any("from_chain" in each for each in said), said

        found, said = ported(comm, make, samples, is_first=True)
        assert abs(found[0] - expected[0]) > 1e-4
        told = [each for each in said if "Make the iterators before from_chain" in each]
        # Once, and by the rank that reads the iterator.
        assert len(told) == (comm.rank == 0), said


def test_from_chain_draws_the_weights_of_the_serial_script_or_warns():
    assert_on_ranks(2, check_scripts)


def check_states(comm):
    np.random.seed(1)
    if comm.rank == 0:
        np.random.permutation(5)
    model = from_chain(MLP(), SAMPLES[0][0][None])
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Pipeline(stage, comm, n_microbatches=2)
    told = [str(each.message) for each in caught]
    expected = "from other numbers on rank 1 than on rank 0, so they depend on the cut"
    assert [expected in each for each in told] == [True] * (comm.rank == 0), told


def test_ranks_that_draw_other_weights_are_told_so():
    assert_on_ranks(2, check_states)
