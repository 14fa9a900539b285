"""Minibatches overlap where no feature needs the whole model between them."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from threading import Thread

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from data_parallel import Grid
from divisible import Divisible, Machine, Plan, carry_state, deferred_init
from divisible.planning.conditions import Conditions
from divisible.streaming import Streamed
from mixed_precision import MixedPrecision
from pipeline import Pipeline, rebalance
from pipeline.step.late_dict import LateDict
from tests.support.equivalence import make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks
from tests.support.overlap import deep_mlp, hold_up, make

TAG = 7


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_step_does_not_wait_for_the_last_rank(n_ranks):
    assert_on_ranks(n_ranks, _step_without_wait)


@pytest.mark.parametrize("n_ranks", [3, *matrix(2)])
def test_a_count_of_samples_does_not_wait_for_the_end_of_the_last_rank(n_ranks):
    assert_on_ranks(n_ranks, _step_without_wait, {"lossfun": masked_loss})


def masked_loss(y, t):
    """Returns a loss, and the number of samples that it counts."""
    return F.softmax_cross_entropy(y, t), int((t >= 0).sum())


def _step_without_wait(comm, options=None):
    """The last rank ends its step only when the others have updated their stages."""
    pipe, optimizer = make(comm, overlap_minibatches=True, **(options or {}))
    batches = make_batches([8] * 3, n_in=8)
    pipe.step(*batches[0])
    optimizer.update()
    params = [p for stage in pipe.stages.values() for p in stage.params()]
    before = [param.array.copy() for param in params]
    others = range(comm.size - 1)
    if pipe.is_last:
        hold_up(pipe, lambda: [comm.recv(source=i, tag=TAG) for i in others])
    results = [pipe.step(*batches[1])]
    optimizer.update()
    if not pipe.is_last:
        assert not any(map(np.array_equal, before, [p.array for p in params]))
        comm.send("updated", comm.size - 1, TAG)
    results.append(pipe.step(*batches[2]))
    means = comm.allgather([dict(result) for result in results])
    assert means == means[:1] * comm.size
    assert all(type(value) is float for value in means[0][0].values())
    pipe.close()


def test_a_count_is_awaited_after_a_move_of_layers_too():
    assert_on_ranks(2, _count_after_a_move)


def _count_after_a_move(comm):
    """Ignored labels change the mean of gradients, wherever the layers are."""
    x, t = make_batches([10], n_in=8)[0]
    t[:6] = -1
    found = []
    for moves in (False, True):
        pipe, optimizer = make(comm, "1f1b", lossfun=masked_loss)
        if moves:
            rebalance(pipe, [optimizer], [0, 3, 15], deep_mlp)
        pipe.step(x, t)
        own = {
            path: param.grad
            for stage in pipe.stages.values()
            for path, param in stage.namedparams()
        }
        found.append({k: v for each in comm.allgather(own) for k, v in each.items()})
        pipe.close()
    assert len(found[0]) == 16 and found[0].keys() == found[1].keys()
    for path, expected in found[0].items():
        np.testing.assert_allclose(found[1][path], expected, 1e-5, 1e-7, err_msg=path)


def test_another_thread_may_read_results():
    assert_on_ranks(2, _read_in_a_thread)


def _read_in_a_thread(comm):
    pipe, optimizer = make(comm)
    results, read = SimpleQueue(), []

    def log():
        while (result := results.get()) is not None:
            read.append(dict(result))

    thread = Thread(target=log)
    thread.start()
    expected = []
    for batch in make_batches([8] * 20, n_in=8):
        expected.append(pipe.step(*batch))
        results.put(expected[-1])
        optimizer.update()
    results.put(None)
    thread.join()
    assert read == expected
    pipe.close()


def test_a_plan_keeps_the_wish():
    assert_on_ranks(2, _run_a_plan)


def _run_a_plan(comm):
    plan = Plan([0, 6, 15], n_microbatches=4, schedule="zb_h2")
    for overlap, kind in ((True, LateDict), (False, dict)):
        options = {"plan": plan, "overlap_minibatches": overlap}
        with Pipeline(deep_mlp(), comm, **options) as pipe:
            pipe.setup(chainer.optimizers.SGD(0.1))
            assert type(pipe.step(*make_batches([8], n_in=8)[0])) is kind
    for overlap, kind in ((True, LateDict), (None, LateDict), (False, dict)):
        made_for = Conditions(Machine(2), batch=8, overlap_minibatches=overlap)
        with Pipeline(
            deep_mlp(), comm, plan=replace(plan, conditions=made_for)
        ) as pipe:
            pipe.setup(chainer.optimizers.SGD(0.1))
            assert type(pipe.step(*make_batches([8], n_in=8)[0])) is kind
            waits = "minibatches do not overlap: overlap_minibatches=False" in str(pipe)
            assert waits is (overlap is False)


def test_numbers_of_samples_wait_for_the_last_rank():
    assert_on_ranks(2, _numbers_of_samples)


def _numbers_of_samples(comm):
    pipe, optimizer = make(comm)
    assert (pipe.n_counted, pipe.n_samples) == ({}, None)
    for n in (8, 6):
        pipe.step(*make_batches([n], n_in=8)[0])
        optimizer.update()
        assert pipe.n_counted == {"loss": n, "accuracy": n}
        assert pipe.n_samples == n
    pipe.close()


def tied(comm):
    model = deep_mlp()
    model.tie("/0/W", "/12/W")
    return comm, {"model": model}


def streamed(comm):
    with deferred_init(seed=0):
        return comm, {"model": Divisible(Streamed(L.Linear(8, 8)), L.Linear(8, 4))}


def carrying(comm):
    return comm, {"model": Divisible(carry_state(L.LSTM(8, 8)), L.Linear(8, 4))}


def scaled(comm):
    rule = MixedPrecision(chainer.optimizers.SGD(0.1), comm=comm)
    return comm, {"rule": rule, "loss_scale": rule.loss_scale}


FEATURES = {
    "replicas": lambda comm: (Grid(comm, 1), {}),
    "ties": tied,
    "streamed layers": streamed,
    "carry_state": carrying,
    "loss_scale": scaled,
    "overlap_minibatches=False": lambda comm: (comm, {"overlap_minibatches": False}),
}


def test_features_that_need_the_whole_model_wait_or_are_refused():
    assert_on_ranks(2, _check_features)


def _check_features(comm):
    x, t = make_batches([8], n_in=8)[0]
    for feature, options_of in FEATURES.items():
        of_pipe, options = options_of(comm)
        pipe, optimizer = make(of_pipe, **options)
        assert f"minibatches do not overlap: {feature}" in str(pipe)
        assert type(pipe.step(x, t)) is dict, feature
        optimizer.update()
        pipe.close()
        # A loss scale that an optimizer has is confirmed later.
        if feature not in ("loss_scale", "overlap_minibatches=False"):
            words = f"overlap_minibatches=True does not go together with {feature}"
            of_pipe, options = options_of(comm)
            with pytest.raises(ValueError, match=words):
                make(of_pipe, overlap_minibatches=True, **options)


def test_a_clipping_that_comes_later_waits_or_is_confirmed_later():
    assert_on_ranks(2, _clip_later)


def _clip_later(comm):
    x, t = make_batches([8], n_in=8)[0]
    for overlap in ("auto", True):
        pipe, optimizer = make(comm, overlap_minibatches=overlap)
        assert "do not overlap" not in str(pipe)
        pipe.step(x, t)
        optimizer.update()
        assert type(pipe.step(x, t)) is not dict
        optimizer.update()
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.1))
        assert type(pipe.step(x, t)) is (LateDict if overlap is True else dict)
        optimizer.update()
        waits = "minibatches do not overlap: GradientClipping" in str(pipe)
        assert waits is (overlap == "auto")
        pipe.close()


class Reporting(chainer.Link):
    def forward(self, x):
        chainer.report({"mean": chainer.as_array(x).mean()}, self)
        return x


def test_steps_with_reports_of_layers_wait():
    assert_on_ranks(2, _report)


def _report(comm):
    model = Divisible(L.Linear(8, 8), Reporting(), L.Linear(8, 4))
    pipe, optimizer = make(comm, model=model, overlap_minibatches=True)
    for batch in make_batches([8] * 3, n_in=8):
        result = pipe.step(*batch)
        optimizer.update()
        assert type(result) is dict and set(result) == {"loss", "accuracy", "/1/mean"}
    pipe.close()


@pytest.mark.parametrize("value", ["yes", 1, None, 0.0])
def test_another_value_is_refused(value):
    with pytest.raises(ValueError, match="overlap_minibatches must be 'auto'"):
        make(MPI.COMM_SELF, "1f1b", overlap_minibatches=value)
