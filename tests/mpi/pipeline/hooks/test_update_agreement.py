"""Copies of a tied parameter stay equal, or the pipeline says what parted them."""

import warnings

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from mpi4py import MPI

from divisible import Divisible, Plan
from mixed_precision import LARSHook, MixedPrecision
from pipeline import DisagreementError, Pipeline, PipelineUpdater
from pipeline.hooks import update_agreement
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks

(BATCH,) = make_batches([8])


def tied():
    np.random.seed(3)
    model = Divisible(*[L.Linear(6, 6) for _ in range(5)], L.Linear(6, 4))
    model.tie("/0/W", "/2/W")
    model.tie("/0/W", "/4/W", transpose=True)
    return model


def stage_of(comm):
    model = tied()
    return model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))


def copies(comm, stage):
    """Returns those of all ranks."""
    return comm.allgather(dict(stage.namedparams())["/0/W"].array)


def nothing(optimizer, copy, rank):
    pass


def rate(optimizer, copy, rank):
    copy.update_rule.hyperparam.lr = 0.1 * rank


def rate_of_optimizer(optimizer, copy, rank):
    optimizer.lr = 0.1 * rank


def decay(optimizer, copy, rank):
    if rank == 1:
        copy.update_rule.add_hook(hooks.WeightDecay(0.1))


def decays(optimizer, copy, rank):
    copy.update_rule.add_hook(hooks.WeightDecay(0.1 * rank))


def freeze(optimizer, copy, rank):
    copy.update_rule.enabled = rank != 0


def freeze_all(optimizer, copy, rank):
    copy.update_rule.enabled = False
    # Does not matter then.
    copy.update_rule.hyperparam.lr = rank


def another(optimizer, copy, rank):
    if rank == 2:
        chainer.optimizers.Adam().setup(optimizer.target)


def own_hook(optimizer, copy, rank):
    def shrink(rule, param):
        param.grad *= 0.5 + rank

    copy.update_rule.add_hook(shrink)


def watch(optimizer, copy, rank):
    """A hook that changes nothing may be on one copy only."""

    def look(rule, param):
        pass

    if rank == 0:
        copy.update_rule.add_hook(look)


def load(optimizer, copy, rank):
    if rank == 0:
        copy.array[0, 0] += 1


def clip(optimizer, copy, rank):
    optimizer.add_hook(hooks.GradientClipping(0.01))


def noise(optimizer, copy, rank):
    np.random.seed(rank)
    optimizer.add_hook(hooks.GradientNoise(0.1))


def noise_of_rule(optimizer, copy, rank):
    np.random.seed(rank)
    copy.update_rule.add_hook(hooks.GradientNoise(0.1))


def lars(optimizer, copy, rank):
    optimizer.add_hook(hooks.GradientLARS())
    copy.update_rule.add_hook(LARSHook(0.1))


def train(comm, treat, given=True, n_steps=4, mixed=False, before=0):
    """Trains; ``treat`` does something to the optimizer and the copy of a rank."""
    stage = stage_of(comm)
    optimizer = chainer.optimizers.MomentumSGD(0.1)
    options = {"timeout": 20}
    if mixed:
        optimizer = MixedPrecision(optimizer, loss_scale=1, comm=comm, timeout=20)
        options["loss_scale"] = optimizer.loss_scale
    optimizer.setup(stage)
    with Pipeline(stage, comm, n_microbatches=2, **options) as pipe:
        if given:
            pipe.global_hooks(optimizer)
        for step in range(n_steps):
            if step == before:
                treat(optimizer, dict(stage.namedparams())["/0/W"], comm.rank)
            pipe.step(*BATCH)
            optimizer.update()
    return copies(comm, stage)


def stay_equal(comm):
    for mixed in (False, True):
        for treat in (nothing, freeze_all, watch, clip, noise, noise_of_rule, lars):
            first, *others = train(comm, treat, mixed=mixed)
            for other in others:
                np.testing.assert_array_equal(first, other)


def test_copies_stay_equal_bit_for_bit():
    assert_on_ranks(3, stay_equal)


REFUSED = {
    rate: r"in stage 0 \(rank 0\) by MomentumSGDRule\(lr=0.0, .*lr=0.1, .*lr=0.2, ",
    rate_of_optimizer: r"rank 1\) by MomentumSGDRule\(lr=0.1, momentum=0.9\), updated",
    decay: r"rank 1\) by .* after WeightDecay\(rate=0.1\), updated 0 times; in stage 2",
    decays: r"WeightDecay\(rate=0.1\).* WeightDecay\(rate=0.2\)",
    freeze: r"rank 0\) by nothing \(it is frozen.* freeze all of them or none",
    another: r"rank 1\) by MomentumSGDRule.*rank 2\) by AdamRule",
}
DRIFT = {
    own_hook: r"\(here: .*function\). A new Pipeline",
    load: r"Set weights before the Pipeline is made",
}


def part(comm):
    for mixed in (False, True):
        for treat, words in REFUSED.items():
            with pytest.raises(DisagreementError, match=rf"/0/W is one .*{words}"):
                train(comm, treat, n_steps=1, mixed=mixed)
        for treat, words in DRIFT.items():
            about = r"copies of /0/W in stage 0 \(rank 0\), .*stage 2 \(rank 2\)"
            with pytest.raises(DisagreementError, match=rf"{about}.*{words}"):
                train(comm, treat, n_steps=2, mixed=mixed)
    # Loops by hand that have not given their optimizers.
    refused = pytest.raises(DisagreementError, match=r"pipe.global_hooks\(optimizer\)")
    with pytest.warns(UserWarning, match="pipe.global_hooks"), refused:
        train(comm, clip, given=False, n_steps=2)
    with refused:
        train(comm, noise, given=False, n_steps=2)


def test_what_parts_copies_is_named_on_all_ranks():
    assert_on_ranks(3, part)


def part_late(comm):
    update_agreement._INTERVAL = 8
    try:
        # Weights are compared in the step 16.
        train(comm, own_hook, n_steps=15, before=8)
        with pytest.raises(DisagreementError, match="different weights"):
            train(comm, own_hook, n_steps=16, before=8)
        # Rates in every step.
        with pytest.raises(DisagreementError, match=r"updated 9 times"):
            train(comm, rate, n_steps=10, before=9)
    finally:
        update_agreement._INTERVAL = 64


def test_a_drift_is_found_later_as_well():
    assert_on_ranks(2, part_late)


def two_copies_on_a_rank(comm):
    model = Divisible(*[L.Linear(6, 6) for _ in range(4)])
    model.tie("/0/W", "/2/W")
    bounds = [(i, i + 1) for i in range(comm.rank, 4, 2)]
    stages = [model.divide(*pair) for pair in bounds]
    optimizers = [chainer.optimizers.SGD(0.1).setup(stage) for stage in stages]
    pipe = Pipeline(stages, comm, n_microbatches=2, schedule="interleaved", timeout=20)
    samples = chainer.datasets.TupleDataset(*BATCH)
    iterator = chainer.iterators.SerialIterator(samples, 4, shuffle=False)
    updater = PipelineUpdater(iterator, optimizers, pipe)
    with chainer.Reporter().scope({}):
        for _ in range(3):
            updater.update()
            # As extensions do; the other one follows.
            optimizers[0].lr *= 0.5
    np.testing.assert_array_equal(*(comm.bcast(stage[0].W.array) for stage in stages))
    if comm.rank == 0:
        optimizers[1].lr = 0.2
    words = r"in stage 0 \(rank 0\) by SGDRule\(lr=0.0125\).*in stage 2 \(rank 0\) by"
    with pytest.raises(DisagreementError, match=words):
        pipe.step(*BATCH)


def test_two_copies_on_one_rank():
    assert_on_ranks(2, two_copies_on_a_rank)


def untied(comm):
    model = Divisible(*[L.Linear(6, 6) for _ in range(3)])
    return model.divide(*Plan.uniform(3, comm.size).range(comm.rank))


def unequal_optimizers(comm, make, words):
    stage = untied(comm)
    optimizer = make(comm).setup(stage)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Pipeline(stage, comm, n_microbatches=2, timeout=20) as pipe:
            pipe.global_hooks(optimizer)
            for _ in range(3):
                pipe.step(*BATCH)
                optimizer.update()
                if comm.rank == 0:
                    # As an extension does that only the trainer of rank 0 has.
                    optimizer.lr *= 0.5
    (text,) = [str(each.message) for each in caught] if comm.rank == 0 else [words]
    assert words in text
    assert [each.filename for each in caught] == [__file__] * (comm.rank == 0)


def test_a_rate_that_changes_on_one_rank_is_warned_of_once():
    words = "rank 0 by SGD(lr=0.05); ranks 1 and 2 by SGD(lr=0.1)"
    assert_on_ranks(3, unequal_optimizers, sgd, words)


def test_the_optimizer_within_mixed_precision_is_named():
    words = "rank 0 by SGD(lr=0.05); rank 1 by SGD(lr=0.1)"
    assert_on_ranks(2, unequal_optimizers, sgd_in_mixed_precision, words)


def sgd(comm):
    return chainer.optimizers.SGD(0.1)


def sgd_in_mixed_precision(comm):
    return MixedPrecision(sgd(comm), loss_scale=1, comm=comm, timeout=20)


def test_copies_of_stages_on_one_rank_must_be_updated_alike():
    model = Divisible(L.Linear(6, 6, nobias=True), L.Linear(6, 6, nobias=True))
    model.tie("/0/W", "/1/W")
    stages = [model.divide(0, 1), model.divide(1, 2)]
    for stage in stages:
        chainer.optimizers.SGD(0.1).setup(stage)
    stages[1].disable_update()
    pipe = Pipeline(stages, MPI.COMM_SELF, n_microbatches=2, schedule="interleaved")
    with pytest.raises(DisagreementError, match="/0/W .* are not updated alike"):
        pipe.step(*BATCH)
