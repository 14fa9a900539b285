"""A loss with terms of inner layers, which go over skips past the stages between."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Plan, pop, stash
from pipeline import Pipeline
from tests.support.equivalence import assert_close, make_batches, stages_of_rank
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks
from tests.support.sent_messages import sent_in_a_step

N_MICROBATCHES = 3


class Balance(chainer.Chain):
    """How unequally a sample would be shared among experts: one number per sample."""

    def __init__(self):
        super().__init__(scores=L.Linear(6, 3))

    def forward(self, x):
        shares = F.softmax(self.scores(x))
        return F.sum(F.square(shares), axis=1)


class MeanBalance(Balance):
    """The mean over the samples of a call: a scalar."""

    def forward(self, x):
        return F.mean(super().forward(x))


def kept(balance, x):
    return x


def build(kind=Balance):
    """Two inner layers, each of which gives the loss a term."""
    np.random.seed(3)
    layers = []
    for i in range(2):
        layers += [L.Linear(6, 6), F.tanh]
        layers += [stash(f"x{i}"), kind(), stash(f"balance{i}"), pop(f"x{i}", kept)]
    layers += [L.Linear(6, 6), F.tanh, L.Linear(6, 4)]
    return Divisible(*layers, pop("balance0"), pop("balance1"))


def lossfun(y, balance, other, t):
    return F.softmax_cross_entropy(y, t) + F.mean(balance) + 3 * F.mean(other)


def accfun(y, balance, other, t):
    return F.accuracy(y, t)


def set_up(model):
    return chainer.optimizers.MomentumSGD(0.1).setup(model)


def serially(kind, batches):
    """The losses, parameters and outputs of the undivided model."""
    model, losses = build(kind), []
    optimizer = set_up(model)
    for x, t in batches:
        model.cleargrads()
        loss = lossfun(*model(x), t)
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    y, first, second = model(batches[0][0])
    last = float(lossfun(y, first, second, batches[0][1]).array)
    outputs = [each.array for each in (y, first, second)]
    return losses, dict(model.namedparams()), outputs, last


def trains(comm, kind, batches, expected, schedule, n_stages, **options):
    losses, params, outputs, last = expected
    model = build(kind)
    plan = Plan.uniform(len(model), n_stages)
    mine = stages_of_rank(comm, n_stages, schedule)
    stages = [model.divide(*plan.range(i)) for i in mine]
    given = {"lossfun": lossfun, "accfun": accfun, "schedule": schedule, **options}
    found = []
    with Pipeline(
        stages, comm, n_microbatches=N_MICROBATCHES, timeout=30, **given
    ) as pipe:
        optimizers = list(map(set_up, stages))
        for x, t in batches:
            found.append(pipe.step(x, t)["loss"])
            for optimizer in optimizers:
                optimizer.update()
        assert_close(pipe.evaluate(*batches[0])["loss"], last)
        if kind is Balance:
            for y, other in zip(pipe.predict(batches[0][0]), outputs, strict=True):
                assert_close(y, other, atol=1e-6)
    assert_close(found, losses)
    for stage in stages:
        for path, param in stage.namedparams():
            assert_close(param.array, params[path].array, 1e-5, 1e-6, path)


def in_many_ways(comm):
    batches = make_batches([8, 5, 8])
    for kind in (Balance, MeanBalance):
        expected = serially(kind, batches)
        for schedule, n_stages in (("1f1b", 3), ("zb_v", 6), ("interleaved", 6)):
            for recompute in ("never", "always", [(0, 5), (6, 12)]):
                way = schedule, n_stages
                trains(comm, kind, batches, expected, *way, recompute=recompute)
    every_cut(comm, batches)


def every_cut(comm, batches):
    """Two neighbouring layers on a rank of their own, everywhere."""
    expected = serially(Balance, batches)
    n_layers = len(build())
    for cut in range(1, n_layers - 2):
        plan = Plan([0, cut, cut + 2, n_layers])
        model = build()
        stage = model.divide(*plan.range(comm.rank))
        optimizer = set_up(stage)
        with Pipeline(
            stage,
            comm,
            n_microbatches=N_MICROBATCHES,
            lossfun=lossfun,
            accfun=accfun,
            schedule="zb_h1",
            timeout=30,
        ) as pipe:
            for (x, t), loss in zip(batches, expected[0]):
                assert_close(pipe.step(x, t)["loss"], loss)
                optimizer.update()


def test_trains_as_the_undivided_model():
    assert_on_ranks(3, in_many_ways)


def sends_terms_alone(comm):
    # Each inner layer with its stash and its pop in one stage.
    model, plan = build(), Plan([0, 6, 12, 13, 17])
    stage = model.divide(*plan.range(comm.rank))
    (x, t) = make_batches([6])[0]
    with Pipeline(
        stage,
        comm,
        n_microbatches=N_MICROBATCHES,
        lossfun=lossfun,
        accfun=accfun,
        timeout=30,
    ) as pipe:
        texts = sent_in_a_step(pipe, x, t)
    found = [sum(f".{name}" in text for text in texts) for name in ("balance", "x")]
    terms, inputs = np.sum(comm.allgather(found), axis=0)
    # Each term of a microbatch goes straight to the last rank, and its gradient back.
    assert (terms, inputs) == (2 * 2 * N_MICROBATCHES, 0)


def test_terms_go_to_the_last_stage_alone():
    assert_on_ranks(4, sends_terms_alone)


def predicts_scalars(comm):
    model = build(MeanBalance)
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    with Pipeline(stage, comm, n_microbatches=2, timeout=30) as pipe:
        pipe.predict(make_batches([4])[0][0])


def test_a_scalar_is_no_prediction():
    _, output = refused_on_ranks(2, predicts_scalars)
    assert "returned a scalar for a microbatch" in output
    assert "as output 1: to predict" in output
    assert "a value of each sample" in output
