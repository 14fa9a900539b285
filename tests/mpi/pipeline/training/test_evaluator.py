"""Evaluation and prediction over a whole data set, on a pipeline."""

import time

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import extensions
from sklearn.datasets import load_digits

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineEvaluator, predict
from tests.support.mpiexec import assert_on_ranks

BATCH = 100
N_MICROBATCHES, TAG = 2, 7


class Observed(chainer.Link):
    """Reports what passes."""

    def forward(self, x):
        chainer.report({"mean": F.mean(x)}, self)
        return x


def make_layers():
    np.random.seed(2)
    links = L.Linear(64, 30), L.Linear(30, 20), L.Linear(20, 10)
    return [links[0], F.relu, links[1], Observed(), F.relu, links[2]]


def digits():
    x, t = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), t.astype(np.int32)


def iterator_of(x, t, batch=BATCH):
    data = chainer.datasets.TupleDataset(x, t)
    return chainer.iterators.SerialIterator(data, batch, repeat=False, shuffle=False)


def exact(comm):
    x, t = digits()
    layers = make_layers()
    stage = Divisible(*layers).divide(*Plan.uniform(6, comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=4, timeout=20)
    iterator = iterator_of(x, t) if comm.rank == 0 else None
    evaluator = PipelineEvaluator(iterator, pipe)
    evaluator.name = "validation"
    first, second = evaluator(), evaluator()
    assert first == second
    assert len(set(comm.allgather(repr(sorted(first.items()))))) == 1

    outputs = predict(pipe, iterator, label_key=-1)
    of_batches = PipelineEvaluator(iterator, pipe, mean="batches")()
    # A batch size that needs no training with it, and less than there are microbatches.
    few = iterator_of(x[:3], t[:3], 7)
    of_few = PipelineEvaluator(few if comm.rank == 0 else None, pipe)()
    # Training goes on as if nothing had been.
    loss = pipe.step(x[:32], t[:32])["loss"]

    whole = chainer.Sequential(*make_layers())
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        y = whole(x)
        # Each sample's loss, summed up in double precision.
        losses = F.softmax_cross_entropy(y, t, reduce="no").array.astype(float)
    expected = {"loss": losses.mean(), "accuracy": (y.array.argmax(1) == t).mean()}
    for name, value in expected.items():
        # A microbatch's mean is in single precision.
        np.testing.assert_allclose(first[f"validation/main/{name}"], value, rtol=1e-7)
    np.testing.assert_allclose(of_few["main/loss"], losses[:3].mean(), rtol=1e-6)
    np.testing.assert_allclose(loss, losses[:32].mean(), rtol=1e-6)
    np.testing.assert_allclose(outputs, y.array, rtol=1e-5, atol=1e-6)
    mean = first["validation/main/3/mean"]
    hidden = chainer.Sequential(*make_layers()[:3])(x).array
    np.testing.assert_allclose(mean, hidden.mean(), rtol=1e-5)

    serial = extensions.Evaluator(iterator_of(x, t), L.Classifier(whole))()
    for name in expected:
        np.testing.assert_allclose(
            of_batches[f"main/{name}"], serial[f"main/{name}"], rtol=1e-6
        )
    # The two means differ, since the last batch has 97 digits.
    assert abs(serial["main/accuracy"] - expected["accuracy"]) > 1e-6


def test_the_evaluation_of_1797_digits_is_that_of_the_undivided_model():
    assert_on_ranks(3, exact)


def ignored_labels(comm):
    x, t = (a[:60] for a in digits())
    t = np.where(np.arange(60) % 7 < 3, -1, t).astype(np.int32)
    t[50:] = -1
    stage = Divisible(*make_layers()).divide(*[(0, 3), (3, 6)][comm.rank])
    pipe = Pipeline(stage, comm, n_microbatches=2, accfun=None, timeout=20)
    result = PipelineEvaluator(iterator_of(x, t, 8), pipe)()
    y = chainer.Sequential(*make_layers())(x)
    expected = float(F.softmax_cross_entropy(y, t).array)
    np.testing.assert_allclose(result["main/loss"], expected, rtol=1e-6)


def test_the_mean_leaves_out_ignored_labels():
    assert_on_ranks(2, ignored_labels)


def nothing(comm):
    """All ranks learn that there are no samples."""
    stage = Divisible(F.relu, F.relu).divide(comm.rank, comm.rank + 1)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=60)
    iterator = chainer.iterators.SerialIterator([], 4, False, False)
    assert PipelineEvaluator(iterator, pipe)() == {}
    with pytest.raises(ValueError, match="the data set has no samples"):
        predict(pipe, iterator)


def test_an_empty_data_set():
    assert_on_ranks(2, nothing)


def buckets(comm):
    """Batches whose samples have another length each."""
    rng = np.random.RandomState(0)
    data = [
        (rng.rand(length, 4).astype("f"), np.int32(i % 3))
        for length in (3, 5, 2)
        for i in range(4)
    ]
    np.random.seed(1)
    model = Divisible(lambda x: F.mean(x, axis=1), L.Linear(4, 3))
    stage = model.divide(*Plan.uniform(2, comm.size).range(comm.rank))
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)

    def iterator():
        if comm.rank == 0:
            return chainer.iterators.SerialIterator(data, 4, False, False)
        return None

    result = PipelineEvaluator(iterator(), pipe, at_once=1)()
    outputs = predict(pipe, iterator(), label_key=-1, at_once=1)
    expected = np.concatenate([model(x[None]).array for x, _ in data])
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    t = np.array([t for _, t in data])
    loss = float(F.softmax_cross_entropy(expected, t).array)
    np.testing.assert_allclose(result["main/loss"], loss, rtol=1e-5)
    with pytest.raises(ValueError, match="at_once must be positive"):
        PipelineEvaluator(iterator(), pipe, at_once=0)


def test_batches_that_do_not_fit_together():
    assert_on_ranks(2, buckets)


class Meeting:
    """Layers that wait for each other: the last one, for the next minibatch to begin.

    The last rank ends its first minibatch only when the first rank has begun the
    second one. So ranks that wait for the end of each minibatch would wait for ever.
    """

    def __init__(self, comm):
        self.comm, self.calls, self.sent = comm, {"first": -100, "last": -100}, None

    def first(self, x):
        self.calls["first"] += 1
        if self.calls["first"] == N_MICROBATCHES + 1:
            self.sent = self.comm.isend(None, self.comm.size - 1, TAG)
        return x

    def last(self, x):
        self.calls["last"] += 1
        if self.calls["last"] == N_MICROBATCHES:
            deadline = time.monotonic() + 20
            while not self.comm.iprobe(0, TAG):
                assert time.monotonic() < deadline, "rank 0 does not begin the next"
                time.sleep(0.001)
            self.comm.recv(source=0, tag=TAG)
        return x


def ahead(comm, of_outputs):
    x, t = (array[:22] for array in digits())
    np.random.seed(2)
    links = L.Linear(64, 30), L.Linear(30, 20), L.Linear(20, 10)
    meeting = Meeting(comm)
    layers = [meeting.first, links[0], F.relu, links[1], links[2], meeting.last]
    stage = Divisible(*layers).divide(*Plan.uniform(6, comm.size).range(comm.rank))
    options = {"n_microbatches": N_MICROBATCHES, "timeout": 40}
    with Pipeline(stage, comm, **options) as pipe:
        # Minibatches of 8, 8 and 6 samples.
        iterator = iterator_of(x, t, 8) if comm.rank == 0 else None
        evaluator = PipelineEvaluator(iterator, pipe, at_once=1)
        # All ranks tell after the first minibatch of all whether layers report values.
        evaluator()
        meeting.calls = dict.fromkeys(meeting.calls, 0)
        if of_outputs:
            together = predict(pipe, iterator, label_key=-1, at_once=1)
        else:
            together = evaluator()
        meeting.calls = dict.fromkeys(meeting.calls, -100)
        parts = [slice(0, 8), slice(8, 16), slice(16, 22)]
        if of_outputs:
            expected = np.concatenate([pipe.predict(x[part]) for part in parts])
            np.testing.assert_array_equal(together, expected)
            return
        found = [(pipe.evaluate(x[p], t[p]), len(x[p])) for p in parts]
        for name in ("loss", "accuracy"):
            mean = sum(result[name] * n for result, n in found) / len(x)
            assert together[f"main/{name}"] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("of_outputs", [True, False])
def test_the_next_minibatch_begins_before_this_one_has_ended(of_outputs):
    assert_on_ranks(3, ahead, of_outputs)


def left_early(comm):
    """An error that all ranks raise leaves nothing behind for the next call."""
    x, _ = digits()
    layers = make_layers()
    stage = Divisible(*layers).divide(*Plan.uniform(6, comm.size).range(comm.rank))
    with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
        iterator = chainer.iterators.SerialIterator(list(x[:40]), 8, False, False)
        with pytest.raises(ValueError, match="the samples along axis 1"):
            predict(pipe, iterator, axis=1)
        outputs = predict(pipe, iterator, at_once=1)
        np.testing.assert_array_equal(outputs[:8], pipe.predict(x[:8]))


def test_an_error_of_all_ranks_leaves_nothing_behind():
    assert_on_ranks(2, left_early)
