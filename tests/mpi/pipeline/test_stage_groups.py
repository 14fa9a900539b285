"""Stages that take several microbatches as one: the same training on all ranks."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan, carry_state, pop, stash
from divisible.schedules import one_f_one_b, zero_bubble_v
from divisible.schedules.groups import group_weights
from divisible.schedules.stage_groups import group_stages
from pipeline import Pipeline, rebalance
from tests.support.mpiexec import assert_on_ranks

M = 5


def network():
    np.random.seed(0)
    return Divisible(
        L.Convolution2D(2, 4, 3, pad=1),
        stash("early"),
        F.relu,
        L.BatchNormalization(4),
        F.dropout,
        L.Convolution2D(4, 4, 3, pad=1),
        pop("early", F.add),
        L.Linear(4 * 16, 8),
        F.dropout,
        L.Linear(8, 3),
    )


def train(comm, cuts, schedule, recompute=None):
    """Returns losses of steps, and the parameters of all ranks after them."""
    model = network()
    stages = [
        model.divide(*Plan(cuts).range(number))
        for number in schedule.rank_stages(comm.rank)
    ]
    random = np.random.RandomState(1)
    results = []
    with Pipeline(stages, comm, schedule=schedule, recompute=recompute) as pipe:
        optimizer = pipe.setup(chainer.optimizers.SGD(0.05))
        # The last minibatch has fewer samples than microbatches.
        for n in (11, 8, 3):
            x = random.randn(n, 2, 4, 4).astype("f")
            results.append(pipe.step(x, np.arange(n, dtype="i") % 3))
            optimizer.update()
        results.append(pipe.evaluate(x, np.arange(3, dtype="i")))
    arrays = [
        array
        for stage in stages
        for _, link in sorted(stage.namedlinks())
        for name, array in sorted(vars(link).items())
        if name in ("avg_mean", "avg_var")
    ]
    arrays += [p.array for stage in stages for _, p in sorted(stage.namedparams())]
    return results, arrays


def trains_alike(comm, cuts, make, sizes, recompute):
    single = train(comm, cuts, make(comm.size, M))
    grouped = group_weights(group_stages(make(comm.size, M), sizes), 2)
    results, arrays = train(comm, cuts, grouped, recompute)
    for one, other in zip(results, single[0]):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    for one, other in zip(arrays, single[1]):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "n_ranks, cuts, make, sizes, recompute",
    [
        (2, [0, 5, 10], one_f_one_b, [1, 3], None),
        (2, [0, 3, 10], one_f_one_b, [5, 2], "always"),
        (3, [0, 2, 6, 10], one_f_one_b, [2, 1, 4], None),
        (2, [0, 2, 4, 7, 10], zero_bubble_v, [1, 2, 3, 5], None),
    ],
)
def test_groups_train_as_single_microbatches(n_ranks, cuts, make, sizes, recompute):
    assert_on_ranks(n_ranks, trains_alike, cuts, make, sizes, recompute)


def carries_a_state(comm):
    """Each rank refuses it, before a message."""
    model = Divisible(L.Linear(4, 4), carry_state(L.LSTM(4, 4)), L.Linear(4, 3))

    def pipeline(cuts, sizes):
        stage = model.divide(*Plan(cuts).range(comm.rank))
        schedule = group_stages(one_f_one_b(comm.size, M), sizes)
        return stage, Pipeline(stage, comm, schedule=schedule, timeout=20)

    words = "groups of stages do not go together with carry_state: /1 carries"
    with pytest.raises(ValueError, match=f"{words}.*its stage 1 takes 2 microbatches"):
        pipeline([0, 1, 3], [1, 2])
    # The group is of another stage, until the layer moves there.
    stage, pipe = pipeline([0, 1, 3], [2, 1])
    with pipe:
        optimizer = pipe.setup(chainer.optimizers.SGD())
        with pytest.raises(Exception, match=f"{words}.*its stage 0 takes 2"):
            rebalance(pipe, optimizer, [0, 2, 3], lambda: model)


def test_a_stage_that_carries_states_has_no_groups():
    assert_on_ranks(2, carries_a_state)
