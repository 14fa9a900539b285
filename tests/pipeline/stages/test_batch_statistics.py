"""Statistics of batch normalization, collected over microbatches."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from divisible import Divisible
from divisible.running_averages import AveragingFunction, RunningAverage, Sample
from pipeline import Pipeline
from pipeline.stages.batch_statistics import BatchStatistics
from tests.support.equivalence import assert_close


def images(n, seed=0):
    rng = np.random.RandomState(seed)
    return rng.normal(3, 2, size=(n, 4, 5, 2)).astype(np.float32)


def collect(model, x, sizes):
    statistics = BatchStatistics(model.links)
    statistics.begin()
    for part in np.split(x, np.cumsum(sizes)[:-1]):
        with statistics:
            model(part)
    statistics.finish()


def averages(link):
    return link.avg_mean, link.avg_var


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 99))
def test_any_cut_of_the_minibatch_gives_its_statistics(sizes, seed):
    x = images(sum(sizes), seed)
    links = [L.BatchNormalization(4), L.BatchNormalization(4)]
    links[0](x)
    collect(links[1], x, sizes)
    for actual, expected in zip(averages(links[1]), averages(links[0])):
        assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_large_mean_does_not_cancel_the_variance():
    x = images(8) * np.float32(0.01) + 100
    links = [L.BatchNormalization(4, dtype=np.float64) for _ in range(2)]
    links[0](x.astype(np.float64))
    collect(links[1], x.astype(np.float64), [1, 2, 5])
    assert_close(links[1].avg_var, links[0].avg_var, rtol=1e-9)


def test_what_normalizes_is_the_microbatch():
    x = images(6)
    link = L.BatchNormalization(4)
    statistics = BatchStatistics(link.links)
    statistics.begin()
    with statistics:
        y = link(x[:2])
    assert_close(y.array, L.BatchNormalization(4)(x[:2]).array, rtol=1e-6, atol=1e-6)


def test_a_link_called_twice_moves_twice_as_in_the_undivided_model():
    x = images(6)
    links = [L.BatchNormalization(4), L.BatchNormalization(4)]
    twice = [Divisible(link, lambda x: x * 2 + 1, link) for link in links]
    # The second call's inputs depend on how the first one normalized: give it a whole.
    twice[0](x)
    collect(twice[1], x, [6])
    for actual, expected in zip(averages(links[1]), averages(links[0])):
        assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_functions_with_arrays_of_the_users_own():
    x = images(6)
    arrays = [[np.zeros(4, "f"), np.ones(4, "f")] for _ in range(2)]

    def model(mean, variance):
        one, zero = np.ones(4, "f"), np.zeros(4, "f")
        return Divisible(
            lambda x: F.batch_normalization(
                x, one, zero, running_mean=mean, running_var=variance, decay=0.5
            )
        )

    model(*arrays[0])(x)
    collect(model(*arrays[1]), x, [1, 5])
    for actual, expected in zip(arrays[1], arrays[0]):
        assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_fine_tuning_counts_minibatches():
    links = [L.BatchNormalization(4), L.BatchNormalization(4)]
    models = [Divisible(lambda x, link=link: link(x, finetune=True)) for link in links]
    for step in range(3):
        part = images(6, seed=step)
        models[0](part)
        statistics = BatchStatistics(links[1].links)
        statistics.begin()
        for microbatch in (part[:1], part[1:]):
            with statistics:
                models[1](microbatch)
        statistics.finish()
    assert links[1].N == links[0].N == 3
    for actual, expected in zip(averages(links[1]), averages(links[0])):
        assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_renormalization_reads_the_averages_from_before_the_minibatch():
    x = images(6)
    link, other = (L.BatchRenormalization(4, rmax=2.0, dmax=1.0) for _ in range(2))
    statistics = BatchStatistics(link.links)
    statistics.begin()
    for part in (x[:3], x[3:]):
        with statistics:
            y = link(part)
        assert_close(y.array, other.copy("copy")(part).array, rtol=1e-6, atol=1e-6)
    statistics.finish()
    other(x)
    for actual, expected in zip(averages(link), averages(other)):
        assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train", [True, False])
def test_without_statistics_to_move_nothing_happens(train):
    link = L.BatchNormalization(4)
    before = [array.copy() for array in averages(link)]
    with (
        chainer.using_config("train", train),
        chainer.using_config("in_recomputing", True),
    ):
        collect(link, images(4), [2, 2])
    for actual, expected in zip(averages(link), before):
        np.testing.assert_array_equal(actual, expected)


def test_a_minibatch_that_was_broken_off_is_forgotten():
    x = images(4)
    link = L.BatchNormalization(4)
    statistics = BatchStatistics(link.links)
    statistics.begin()
    with statistics:
        link(x + 50)
    statistics.begin()
    with statistics:
        link(x)
    statistics.finish()
    expected = L.BatchNormalization(4)
    expected(x)
    assert_close(link.avg_mean, expected.avg_mean, rtol=1e-6)


class Late(chainer.Link):
    """Normalizes by a function, without a link, once it is switched on."""

    def __init__(self):
        super().__init__()
        self.mean, self.variance = np.zeros(4, "f"), np.ones(4, "f")
        self.is_on = False

    def forward(self, x):
        if not self.is_on:
            return x
        gamma, beta = np.ones(4, "f"), np.zeros(4, "f")
        averages = {"running_mean": self.mean, "running_var": self.variance}
        return F.batch_normalization(x, gamma, beta, **averages)


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_averages_that_begin_late_to_move_do_so_once_a_minibatch(recompute):
    late, x = Late(), images(8)[:, :, 0, 0]
    model = Divisible(late, L.Linear(4, 3))
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=4, recompute=recompute)
    for step in range(6):
        late.is_on = step == 5
        pipe.step(x, np.zeros(8, np.int32))
    assert_close(late.mean, 0.1 * x.mean(axis=0), rtol=1e-5)
    assert_close(late.variance, 0.9 + 0.1 * x.var(axis=0, ddof=1), rtol=1e-5)


class Averaging(AveragingFunction):
    """Reports its statistics, as a module of another library does."""

    def __init__(self, average):
        self.average = average

    def has_averages(self):
        return True

    def forward(self, inputs):
        (x,) = inputs
        if self.collect is not None:
            rows = x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1])
            statistics = rows.mean(axis=0), rows.var(axis=0, ddof=1)
            self.collect(self.average, Sample(len(rows), *statistics))
        return (x.copy(),)


class ReportingLink(chainer.Link):
    def __init__(self):
        super().__init__()
        self.n_moves = 0
        self.average = RunningAverage(
            id(self), np.zeros(4), np.ones(4), lambda n: 0.9, self.moved
        )

    def moved(self):
        self.n_moves += 1

    def running_averages(self):
        return [self.average]

    def forward(self, x):
        return Averaging(self.average).apply((x,))[0]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 99))
def test_a_function_that_reports_moves_as_chainers_own(sizes, seed):
    x = images(sum(sizes), seed)
    known, link = L.BatchNormalization(4), ReportingLink()
    known(x)
    collect(link, x, sizes)
    for actual, expected in zip(link.average[1:3], averages(known)):
        assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert link.n_moves == 1
    with chainer.using_config("train", False):
        collect(link, x, sizes)
    assert link.n_moves == 1


def test_replicas_share_what_functions_report():
    """Also one without samples in this minibatch."""
    x = images(6)
    known, links = L.BatchNormalization(4), [ReportingLink(), ReportingLink()]
    known(x)
    said = []

    def gather(value):
        said.append(value)
        return said

    for link, samples in zip(links, (x, x[:0])):
        statistics = BatchStatistics(link.links, gather)
        statistics.begin()
        if len(samples):
            with statistics:
                link(samples)
        statistics.finish()
    for link in links:
        assert link.n_moves == 1
        for actual, expected in zip(link.average[1:3], averages(known)):
            assert_close(actual, expected, rtol=1e-4, atol=1e-5)
