"""Layers that cannot move: all ranks say why, and nothing has changed."""

import os
import signal

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import pipeline.rebalancing.moving
from divisible import Divisible, Plan, free_memory
from pipeline import (
    DisagreementError,
    Pipeline,
    load_snapshot,
    rebalance,
    save_snapshot,
)
from tests.support.mpiexec import assert_on_ranks, on_ranks

X, T = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
START_UP, DEADLINE = 20, 10


def build(n_units=4, last=L.Linear):
    return Divisible(
        L.Linear(4, n_units), F.tanh, L.Linear(n_units, 4), F.tanh, last(4, 3)
    )


class Run:
    def __init__(
        self, comm, make_optimizer=chainer.optimizers.Adam, model=None, **options
    ):
        model = model or build()
        stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
        self.stage = stage
        self.optimizer = make_optimizer().setup(stage)
        self.pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20, **options)

    def step(self):
        loss = self.pipe.step(X, T)["loss"]
        self.optimizer.update()
        return loss


def refused(run, words, cuts=(0, 2, 5), make=build):
    """Moves layers, which must be refused; then the run goes on as it was."""
    before, params = run.pipe.cuts, dict(run.stage.namedparams())
    with pytest.raises((ValueError, TypeError, RuntimeError, MemoryError)) as caught:
        rebalance(run.pipe, run.optimizer, cuts, make)
    assert words in str(caught.value), caught.value
    assert run.pipe.cuts == before
    assert all(params[path] is p for path, p in run.stage.namedparams())
    return caught.value


def bad_arguments(comm):
    run = Run(comm)
    with run.pipe:
        run.step()
        refused(run, "make 2 stages of 6 layers", (0, 3, 6))
        refused(run, "make 3 stages", (0, 2, 3, 5))
        refused(run, "of a model of 5 layers", make=lambda: Divisible(F.relu))
        refused(
            run, "another model: layer 4", make=lambda: build(last=lambda *_: L.Bias(0))
        )
        refused(run, "build() makes /0/W of (5, 4)", make=lambda: lazy(5))
        refused(run, "must return the undivided", make=lambda: build().divide(0, 5))
        refused(run, "must be a function", make=build())
        run.step()


def with_a_bias():
    return build(last=lambda *_: L.Bias(0))


def lazy(n_units):
    """A model with the texts of another one."""
    model = build(n_units)
    model._texts[:] = build()._texts
    return model


def on_one_rank_only(comm):
    run = Run(comm)
    with run.pipe:
        run.step()
        cuts = (0, 2, 5) if comm.rank else (0, 9)
        error = refused(run, "make 1 stages of 9 layers", cuts)
        assert isinstance(error, DisagreementError) == (comm.rank == 1)
        refused(run, "the cuts differ: rank 0 gives", (0, 3 - 2 * comm.rank, 5))
        run.optimizer.alpha = 0.1 * (comm.rank + 1)
        refused(run, "optimizers that differ: rank 0 has alpha=0.1")
        run.optimizer.alpha = 0.1
        rebalance(run.pipe, run.optimizer, (0, 2, 5), build)
        run.step()


def in_a_step(comm):
    run = Run(comm)
    with run.pipe:
        run.pipe.step(X, T)
        refused(run, "gradients of minibatch 1 have not been used")
        run.optimizer.update()
        rebalance(run.pipe, run.optimizer, (0, 2, 5), build)
        run.step()


def by_other_pipelines(comm):
    """A pipeline of layers that have moved is refused, and others are not."""
    layers = [*build()]
    run, alone = Run(comm, model=Divisible(*layers)), Run(comm)
    stage = Divisible(*layers).divide(*run.stage.layer_range)
    others = [
        Pipeline(each, comm, n_microbatches=2, timeout=20)
        for each in (stage, run.stage)
    ]
    run.step()
    alone.step()
    before = run.pipe.predict(X)
    for other in others:
        assert np.array_equal(other.predict(X), before)
    rebalance(run.pipe, run.optimizer, (0, 2, 5), build)
    run.step()
    for other in others:
        for call in (other.step, other.evaluate):
            with pytest.raises(ValueError, match="have moved to other ranks"):
                call(X, T)
        other.close()
    alone.step()
    with run.pipe, Pipeline(run.stage, comm, n_microbatches=2, timeout=20) as anew:
        assert np.array_equal(anew.predict(X), run.pipe.predict(X))


def within_a_step(comm):
    run = Run(comm)
    run.step()
    refusals = []

    class Hook(chainer.LinkHook):
        def forward_preprocess(self, args):
            refusals.append(refused(run, "is in a call of step"))

    with Hook():
        run.step()
    assert refusals
    run.pipe.close()


def without_room(comm):
    run = Run(comm)
    there = free_memory.claims
    try:
        if comm.rank == 1:
            free_memory.claims = lambda n: {
                "here": free_memory.Claim("this place", n, 10)
            }
        with run.pipe:
            run.step()
            refused(run, "rank 1: the copies take up to")
            free_memory.claims = there
            rebalance(run.pipe, run.optimizer, (0, 1, 5), build)
            run.step()
    finally:
        free_memory.claims = there


def with_hooks(comm):
    run = Run(comm)
    with run.pipe:
        run.step()
        if comm.rank == 0:
            run.stage[2].add_hook(chainer.link_hooks.TimerHook())
        refused(run, "/2 has the hooks TimerHook, but build() gives", (0, 1, 5))
        if comm.rank == 0:
            run.stage[2].delete_hook("TimerHook")
            run.stage[2].W.update_rule.add_hook(chainer.optimizer_hooks.WeightDecay(1))
        refused(run, "the update rule of /2/W has hooks", (0, 1, 5))


class Scaled(chainer.Chain):
    """A layer with a number that is no persistent value."""

    def __init__(self, n_in, n_out):
        super().__init__(linear=L.Linear(n_in, n_out))
        self.scale = 1.0

    def forward(self, x):
        return self.linear(x) * self.scale


def with_settings(comm):
    def make():
        return Divisible(L.Linear(4, 4), F.tanh, Scaled(4, 4), F.tanh, L.Linear(4, 3))

    run = Run(comm, model=make())
    with run.pipe:
        run.step()
        layer = run.stage[-1]
        if comm.rank == 0:
            layer.scale = 0.5
        refused(run, "/2.scale is 0.5, but build() makes it 1.0", make=make)
        if comm.rank == 0:
            layer.scale, rule = 1.0, layer.linear.b.update_rule
            layer.linear.b.update_rule = None
        refused(run, "/2/linear/b has no update rule", make=make)
        if comm.rank == 0:
            layer.linear.b.update_rule = rule
        rebalance(run.pipe, run.optimizer, (0, 2, 5), make)
        run.step()


@pytest.mark.parametrize(
    "case",
    [
        bad_arguments,
        on_one_rank_only,
        in_a_step,
        by_other_pipelines,
        within_a_step,
        without_room,
        with_hooks,
        with_settings,
    ],
)
def test_it_is_refused_on_all_ranks_and_training_goes_on(case):
    assert_on_ranks(2, case)


def dies(comm, path):
    run = Run(comm)
    run.step()
    save_snapshot(path, run.pipe, run.optimizer)
    if comm.rank == 1:
        pipeline.rebalancing.moving.exchange = lambda *_: os.kill(
            os.getpid(), signal.SIGKILL
        )
    rebalance(run.pipe, run.optimizer, (0, 1, 5), build)
    raise AssertionError("it has moved")


def goes_on(comm, path):
    run = Run(comm)
    with run.pipe:
        load_snapshot(path, run.pipe, run.optimizer)
        assert run.pipe.n_steps == 1
        run.step()


def test_a_rank_that_is_killed_ends_all_and_the_last_snapshot_goes_on(tmp_path):
    path = str(tmp_path / "snapshot")
    result = on_ranks(2, dies, path, timeout=START_UP + DEADLINE)
    assert result.returncode != 0
    assert "signal 9" in result.stdout or "Killed" in result.stdout, result.stdout
    assert "it has moved" not in result.stdout
    assert_on_ranks(2, goes_on, path)
