"""A pipeline that chooses its schedule computes the same, before and after."""

import time

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan
from divisible.communication.errors import DisagreementError
from divisible.schedules.actions import Action
from divisible.schedules.automatic import N_TIMED, N_WARM
from pipeline import Pipeline
from tests.support import kernels
from tests.support.equivalence import check_equal, make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

N_TRIAL = N_WARM + N_TIMED


def deep_mlp():
    return Divisible(*[L.Linear(6, 6) for _ in range(7)], L.Linear(6, 4))


def trains_as_ever(comm, transport):
    # Smaller minibatches while it is tried out and later.
    batches = make_batches([8, 8, 5, 8, 2, 8, 5, 2])
    assert len(batches) > N_TRIAL
    for per_rank, recompute in ((1, "never"), (2, "never"), (2, "always")):
        check_equal(
            comm,
            deep_mlp,
            Plan.uniform(8, per_rank * comm.size).cuts,
            batches,
            n_microbatches=4,
            schedule="auto",
            transport=transport,
            recompute=recompute,
        )


# ChainerMN's waits spin, so that more ranks than cores take long.
@pytest.mark.parametrize(
    "n_ranks, transport",
    [(1, "mpi"), (4, "mpi"), *matrix((2, "mpi"), (2, "chainermn"))],
)
def test_it_trains_as_the_undivided_model(n_ranks, transport):
    assert_on_ranks(n_ranks, trains_as_ever, transport)


def slowly(x):
    time.sleep(0.02)
    return x


def changes_once(comm):
    model = deep_mlp()
    model.append(slowly)
    n = len(model)
    stage = model.divide(*Plan.uniform(n, comm.size).range(comm.rank))
    (x, t), *_ = make_batches([8])
    with Pipeline(stage, comm, n_microbatches=4, schedule="auto", timeout=20) as pipe:
        first, seen = pipe.schedule, []
        for _ in range(N_TRIAL + 2):
            seen.append(str(pipe.schedule))
            pipe.evaluate(x, t)
            pipe.step(x, t)
        assert seen[:N_TRIAL] == [str(first)] * N_TRIAL
        assert seen[N_TRIAL:] == [str(pipe.schedule)] * 2
        for words in comm.allgather(seen):
            assert words == seen
        # What is recorded is what was chosen.
        ran = [event.what for event in pipe.timeline().rank_events(comm.rank)]
        mine = [what for what in ran if isinstance(what, Action)]
        assert mine == list(pipe.schedule.actions[comm.rank])


def test_it_changes_once_and_on_all_ranks():
    assert_on_ranks(3, changes_once)


def compiles_before_it_times(comm):
    layers = L.Convolution2D(3, 8, 3, pad=1), L.BatchNormalization(8), F.relu
    model = Divisible(*layers, L.Convolution2D(8, 8, 3), F.relu, L.Linear(None, 4))
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    random = np.random.RandomState(0)
    x = random.standard_normal((16, 3, 8, 8)).astype(np.float32)
    t = random.randint(0, 4, 16).astype(np.int32)
    with (
        kernels.loops_used() as used,
        Pipeline(stage, comm, n_microbatches=4, schedule="auto", timeout=60) as pipe,
    ):
        counts = [0]
        for _ in range(N_TRIAL):
            pipe.step(x, t)
            counts.append(len(used))
    assert 0 < counts[N_WARM] == counts[N_TRIAL]


def test_no_compilation_is_timed():
    assert_on_ranks(2, compiles_before_it_times)


def some_choose(comm):
    model = deep_mlp()
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    first = Pipeline(
        stage, comm, n_microbatches=4, schedule="auto", timeout=20
    ).schedule
    with pytest.raises(DisagreementError, match="schedule"):
        Pipeline(
            stage,
            comm,
            n_microbatches=4,
            schedule="auto" if comm.rank else first,
            timeout=20,
        )


def test_all_ranks_choose_or_none():
    assert_on_ranks(2, some_choose)
