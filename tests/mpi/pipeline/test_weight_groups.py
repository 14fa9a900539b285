"""Weight gradients of several microbatches together: the same training."""

import itertools
from unittest import mock

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, Plan
from divisible.communication.errors import DisagreementError
from divisible.free_memory import Claim
from divisible.schedules import Schedule, gpipe
from divisible.schedules.group_trial import N_TIMED, N_WARM
from divisible.schedules.groups import group_weights, weight_group_sizes
from pipeline import Pipeline
from pipeline.step import current_schedule
from tests.support.equivalence import check_equal, make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks


def deep_mlp():
    return Divisible(*[L.Linear(6, 6) for _ in range(7)], L.Linear(6, 4))


def trains_as_ever(comm):
    # Smaller minibatches than microbatches, too.
    batches = make_batches([8, 5, 2, 8])
    for schedule, size, recompute in (
        ("1f1b", 2, "never"),
        ("gpipe", 4, "always"),
        ("zb_h1", 3, "except_last"),
        ("auto", 2, "never"),
    ):
        check_equal(
            comm,
            deep_mlp,
            Plan.uniform(8, comm.size).cuts,
            batches,
            n_microbatches=4,
            schedule=schedule,
            recompute=recompute,
            weight_groups=size,
        )


@pytest.mark.parametrize("n_ranks", [3, *matrix(1, 2)])
def test_groups_train_as_the_undivided_model(n_ranks):
    assert_on_ranks(n_ranks, trains_as_ever)


def gradients(comm, cuts, schedule, **options):
    (x, t), *_ = make_batches([8])
    np.random.seed(0)
    model = deep_mlp()
    stage = model.divide(*Plan(cuts).range(comm.rank))
    with Pipeline(stage, comm, n_microbatches=4, schedule=schedule, **options) as pipe:
        pipe.step(x, t)
        mine = [param.grad for _, param in sorted(stage.namedparams())]
        return [*itertools.chain(*comm.allgather(mine))], pipe.schedule, pipe.plan


def rounds_alike(comm):
    for size in (2, 4):
        one, schedule, plan = gradients(comm, [0, 2, 8], "1f1b", weight_groups=size)
        assert weight_group_sizes(schedule) == (size, size)
        assert plan.weight_groups == size
        # Another cut and another schedule, with the same groups.
        other, *_ = gradients(comm, [0, 5, 8], "gpipe", weight_groups=size)
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)


def test_equal_groups_have_equal_bits_for_any_cut():
    assert_on_ranks(2, rounds_alike)


def runs_what_is_written(comm):
    written = group_weights(gpipe(2, 4), [4, 2])
    _, schedule, plan = gradients(comm, [0, 4, 8], Schedule.parse(str(written)))
    assert schedule == written
    assert plan.weight_groups == 4


def test_groups_in_a_schedule_run_as_they_are():
    assert_on_ranks(2, runs_what_is_written)


def chooses_once(comm):
    model = deep_mlp()
    stage = model.divide(*Plan.uniform(8, comm.size).range(comm.rank))
    (x, t), *_ = make_batches([8])
    with Pipeline(
        stage, comm, n_microbatches=4, weight_groups="auto", timeout=20
    ) as pipe:
        sizes = []
        while pipe.internals.trial is not None:
            sizes.append(max(weight_group_sizes(pipe.schedule)))
            pipe.step(x, t)
        chosen = max(weight_group_sizes(pipe.schedule))
        assert sizes[: N_WARM + N_TIMED] == [1] * (N_WARM + N_TIMED)
        assert len(sizes) <= 3 * (N_WARM + N_TIMED)
        assert chosen in sizes and pipe.plan.weight_groups == chosen
        for _ in range(2):
            pipe.step(x, t)
        assert max(weight_group_sizes(pipe.schedule)) == chosen
        assert len({*comm.allgather((chosen, tuple(sizes)))}) == 1


def test_auto_chooses_once_and_on_all_ranks():
    assert_on_ranks(2, chooses_once)


def is_without_memory(comm):
    def claims(n_bytes):
        return {"here": Claim("a small host", 2**40 * comm.rank, 1)}

    stage = deep_mlp().divide(*Plan.uniform(8, comm.size).range(comm.rank))
    (x, t), *_ = make_batches([8])
    with (
        mock.patch.object(current_schedule, "claims", claims),
        Pipeline(stage, comm, n_microbatches=4, weight_groups="auto") as pipe,
    ):
        for _ in range(N_WARM + N_TIMED):
            pipe.step(x, t)
        assert pipe.internals.trial is None
        assert weight_group_sizes(pipe.schedule) == (1, 1)


def test_auto_keeps_to_groups_for_which_all_ranks_have_memory():
    assert_on_ranks(2, is_without_memory)


def differ(comm):
    stage = deep_mlp().divide(*Plan.uniform(8, comm.size).range(comm.rank))
    with pytest.raises(DisagreementError, match="weight_groups"):
        Pipeline(stage, comm, n_microbatches=4, weight_groups=comm.rank + 1)


def test_ranks_with_other_groups_are_refused():
    assert_on_ranks(2, differ)


@pytest.mark.parametrize(
    "size, error",
    [(0, ValueError), (-2, ValueError), (1.5, TypeError), (True, TypeError)]
    + [("all", TypeError), ([2], TypeError)],
)
def test_sizes_that_do_not_exist(size, error):
    with pytest.raises(error, match="weight_groups"):
        Pipeline(deep_mlp(), MPI.COMM_SELF, n_microbatches=2, weight_groups=size)


def test_a_plan_with_groups_is_run():
    plan = Plan([0, 8], 4, "1f1b", weight_groups=2)
    x, t = np.ones((8, 6), np.float32), np.zeros(8, np.int32)
    with Pipeline(
        deep_mlp(), MPI.COMM_SELF, plan=plan, lossfun=F.softmax_cross_entropy
    ) as pipe:
        pipe.step(x, t)
        assert "0W0-1" in str(pipe.schedule)
        assert "weight gradients of 2 microbatches are one product" in str(pipe)
