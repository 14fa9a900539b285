"""A plan that was chosen runs, and trains as the serial script does."""

import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Machine, Network, best_plan, partition, profile
from divisible.planning.plan_simulation import simulate_plan
from pipeline import Pipeline
from tests.support.equivalence import stages_of_rank
from tests.support.mpiexec import assert_on_ranks


def make_model():
    np.random.seed(0)
    widths = [20, 60, 10, 40, 40, 5]
    pairs = zip(widths, widths[1:])
    return Divisible(*[f for pair in pairs for f in (L.Linear(*pair), F.sigmoid)])


def minibatch():
    random = np.random.RandomState(1)
    x = random.standard_normal((12, 20)).astype(np.float32)
    return x, random.randint(0, 5, 12).astype(np.int32)


def serial_gradients(x, t):
    model = make_model()
    model.cleargrads()
    loss = F.softmax_cross_entropy(model(x), t)
    loss.backward()
    return float(loss.array), {p: v.grad for p, v in model.namedparams()}


def run_chosen_plan(comm, schedules, checkpoint):
    x, t = minibatch()
    model = make_model()
    plan = costs = None
    if comm.rank == 0:
        costs = [profile(model, x[:n], t[:n], repeat=2) for n in (3, 12)]
        plan = best_plan(
            costs,
            Machine(comm.size, memory=1e9, network=Network(1e9, 1e-5)),
            schedules=schedules,
            recompute=[checkpoint],
            pipeline_ranks=[comm.size],
            microbatches=[3, 4],
        )
    plan, costs = comm.bcast((plan, costs))
    plan.check(model, comm.size)
    mine = [
        model.divide(*plan.range(stage))
        for stage in stages_of_rank(comm, plan.n_stages, plan.schedule)
    ]
    with Pipeline(
        mine,
        comm,
        plan.n_microbatches,
        plan.schedule,
        checkpoint=plan.recompute,
        timeout=20,
    ) as pipe:
        loss = pipe.step(x, t)["loss"]
        timeline = pipe.timeline()
        predicted = simulate_plan(plan, costs)
        # What is predicted is what runs: the same actions in the same order.
        for rank in range(comm.size):
            mine_done, theirs = (
                [e.what for e in each.rank_events(rank) if e.category in "FBIWR"]
                for each in (timeline, predicted)
            )
            assert mine_done == theirs
    serial_loss, gradients = serial_gradients(x, t)
    assert abs(loss - serial_loss) < 1e-5
    for stage in mine:
        for path, param in stage.namedparams():
            np.testing.assert_allclose(param.grad, gradients[path], 1e-4, 1e-6)


def test_a_chosen_plan_runs():
    assert_on_ranks(2, run_chosen_plan, ["1f1b", "gpipe", "zb_h1"], "never")


def test_a_chosen_plan_with_several_stages_on_a_rank():
    assert_on_ranks(2, run_chosen_plan, ["zb_v", "interleaved"], "never")


def test_a_chosen_plan_that_recomputes():
    assert_on_ranks(2, run_chosen_plan, ["1f1b", "gpipe"], "except_last")


def run_plan_for_others(comm):
    """A plan for three ranks on two is refused before anything is sent."""
    model = make_model()
    plan = partition(profile(model, *minibatch(), repeat=1), 3)
    try:
        plan.check(model, comm.size)
    except ValueError as error:
        assert "is for 3 ranks, but there are 2: start 3 ranks" in str(error)
    else:
        raise AssertionError("it was not refused")


def test_a_plan_for_another_number_of_ranks():
    assert_on_ranks(2, run_plan_for_others)
