"""What users of other pipelines reported, one test for each kind of report."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Plan, pop, stash
from pipeline import Pipeline
from tests.support.equivalence import (
    assert_close,
    check_equal,
    make_batches,
    train_in_microbatches,
    train_on,
    tuple_model,
)
from tests.support.mpiexec import assert_on_ranks


def line(n_layers=4):
    return Divisible(*(L.Linear(6, 6) for _ in range(n_layers - 1)), L.Linear(6, 4))


def few_microbatches(comm):
    for n_microbatches in (1, comm.size - 1):
        check_equal(
            comm,
            line,
            Plan.uniform(4, comm.size).cuts,
            make_batches([8, 8]),
            n_microbatches=n_microbatches,
        )


def test_fewer_microbatches_than_stages_and_one():
    """torchtitan #775, PiPPy #1064."""
    assert_on_ranks(4, few_microbatches)


def skips_across_stages(comm):
    def model():
        return Divisible(
            stash("far"),
            L.Linear(6, 6),
            stash("near"),
            L.Linear(6, 6),
            pop("near", F.add),
            L.Linear(6, 6),
            pop("far", F.add),
            L.Linear(6, 4),
        )

    for cuts in ([0, 1, 3, 5, 8], [0, 2, 4, 6, 8], [0, 3, 4, 7, 8]):
        check_equal(comm, model, cuts, make_batches([8, 5]), n_microbatches=3)


def doubled(x):
    x *= 2
    return x


def skips_past_a_layer_that_works_in_place(comm):
    def model():
        return Divisible(
            stash("x"), doubled, L.Linear(6, 6), pop("x", F.add), L.Linear(6, 4)
        )

    (x, t), *_ = make_batches([8])
    np.random.seed(0)
    expected = float(F.softmax_cross_entropy(model()(x.copy()), t).array)
    for cut in range(1, 5):
        np.random.seed(0)
        stage = model().divide(*[(0, cut), (cut, 5)][comm.rank])
        with Pipeline(stage, comm, n_microbatches=3) as pipe:
            assert_close(pipe.step(x.copy(), t)["loss"], expected)


def test_a_skipped_array_does_not_depend_on_the_cut():
    assert_on_ranks(2, skips_past_a_layer_that_works_in_place)


def test_skips_across_stages_do_not_hang():
    """PiPPy #969 and #1008."""
    assert_on_ranks(4, skips_across_stages)


def tuples(comm):
    cuts = Plan.uniform(4, comm.size).cuts
    check_equal(comm, tuple_model, cuts, make_batches([8, 5]), n_microbatches=3)


def test_tuples_integers_and_tensors_without_gradient():
    """DeepSpeed #1432 and #3895."""
    assert_on_ranks(4, tuples)


class Rows(L.Linear):
    def forward(self, x):
        return super().forward(x, n_batch_axes=2)


def variable_lengths(comm):
    """Sequences of integers, of another length in every minibatch."""

    def model():
        return Divisible(
            L.EmbedID(9, 6),
            Rows(6, 6),
            F.tanh,
            lambda x: F.sum(x, axis=1),
            L.Linear(6, 4),
        )

    rng = np.random.RandomState(0)
    batches = [
        (rng.randint(0, 9, (6, n)).astype(np.int32), rng.randint(0, 4, 6).astype("i"))
        for n in (3, 7, 1, 12, 3)
    ]
    check_equal(comm, model, [0, 1, 3, 5], batches, n_microbatches=3)


def test_lengths_that_change_are_agreed_anew():
    """pytorch #159942, DeepSpeed #3195 and #5696."""
    assert_on_ranks(3, variable_lengths)


def smaller_batches(comm):
    cuts = Plan.uniform(4, comm.size).cuts
    check_equal(comm, line, cuts, make_batches([8, 5, 1, 8]), n_microbatches=4)


def test_a_last_smaller_batch_counts_by_its_samples():
    """pytorch #126600, apex #1500."""
    assert_on_ranks(2, smaller_batches)


def running_averages(comm):
    """As one process on whole minibatches, in the layer that sees the same inputs."""
    batches = make_batches([12] * 5)
    model = Divisible(L.BatchNormalization(6), L.Linear(6, 6), L.Linear(6, 4))
    stage = model.divide(*Plan.uniform(3, comm.size).range(comm.rank))
    train_on(comm, [stage], batches, n_microbatches=4)
    if comm.rank == 0:
        expected = L.BatchNormalization(6)
        for x, _ in batches:
            expected(x)
        assert_close(stage[0].avg_mean, expected.avg_mean, rtol=1e-5, atol=1e-7)
        assert_close(stage[0].avg_var, expected.avg_var, rtol=1e-5)


def test_running_averages_of_batch_normalization():
    """torchgpipe #9 and #14, chainermn #203."""
    assert_on_ranks(3, running_averages)


def tied_weights(comm):
    def model():
        tied = line(5)
        tied.tie("/0/W", "/1/W")  # within a stage
        tied.tie("/2/W", "/3/W", transpose=True)  # across the stages
        return tied

    check_equal(comm, model, [0, 3, 5], make_batches([8, 5, 8]), n_microbatches=3)


def test_tied_weights_within_a_stage_and_across():
    """Megatron #299, pytorch #180952."""
    assert_on_ranks(2, tied_weights)


def copies_stay_equal(comm):
    np.random.seed(comm.rank)  # and so the stages begin with different weights
    model = line(5)
    model.tie("/0/W", "/3/W", transpose=True)
    stage = model.divide(*Plan.uniform(5, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.Adam().setup(stage)
    with Pipeline(stage, comm, n_microbatches=3, timeout=20) as pipe:
        for x, t in make_batches([8] * 10):
            pipe.step(x, t)
            optimizer.update()
    found = [dict(stage.namedparams()).get("/0/W")]
    found = comm.allgather(None if found[0] is None else found[0].array)
    copies = [array for array in found if array is not None]
    assert len(copies) == 2
    np.testing.assert_array_equal(*copies)


def test_copies_of_a_tied_weight_stay_equal_bit_for_bit():
    """pytorch #180952."""
    assert_on_ranks(3, copies_stay_equal)


def loss_on_every_rank(comm):
    stage = line().divide(*Plan.uniform(4, comm.size).range(comm.rank))
    with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
        for x, t in make_batches([8, 8]):
            for result in (pipe.step(x, t), pipe.evaluate(x, t)):
                assert len(set(map(str, comm.allgather(result)))) == 1
                assert result["loss"] > 0


def test_every_rank_gets_the_loss():
    """torchtitan #547, #550 and #931; pytorch #139304 for evaluation."""
    assert_on_ranks(3, loss_on_every_rank)


def dropout(comm):
    def model():
        return Divisible(
            L.Linear(6, 6), F.dropout, L.Linear(6, 6), F.dropout, L.Linear(6, 4)
        )

    np.random.seed(3)
    losses, _ = train_in_microbatches(model(), make_batches([8, 8, 5]), 3)
    for cuts in ([0, 1, 2, 5], [0, 2, 3, 5], [0, 3, 4, 5]):
        np.random.seed(3)
        stage = model().divide(*Plan(cuts).range(comm.rank))
        found = train_on(comm, [stage], make_batches([8, 8, 5]), n_microbatches=3)
        assert_close(found, losses)


def test_dropout_does_not_depend_on_the_cut():
    """pytorch #55036."""
    assert_on_ranks(3, dropout)


def stages_without_parameters(comm):
    def model():
        return Divisible(F.tanh, F.sigmoid, L.Linear(6, 4), F.tanh)

    check_equal(comm, model, [0, 1, 2, 3, 4], make_batches([8, 5]), n_microbatches=3)


def test_stages_without_parameters():
    """Megatron #1166."""
    assert_on_ranks(4, stages_without_parameters)
