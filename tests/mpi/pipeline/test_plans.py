"""A plan runs as it is, whatever it decided, and trains as the serial script does."""

import dataclasses
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.iterators import SerialIterator

from data_parallel import Grid
from divisible import Divisible, Machine, Network, Plan, best_plan, profile
from divisible.planning.plan_simulation import simulate_plan
from mixed_precision import MixedPrecision, to_float16
from pipeline import (
    Pipeline,
    PipelineEvaluator,
    PipelineUpdater,
    load_snapshot,
    rebalance,
    save_snapshot,
)
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks
from tests.support.planned_runs import (
    ANSWERS,
    make_minibatch,
    make_model,
    run,
    run_random_plans,
    serial_losses,
)

TIMEOUT = 60
#: Plans by hand with each field in use, by the number of ranks.
PLANS = {
    1: [
        Plan([0, 6], 3, "1f1b", recompute="always", hold_in=["disk"]),
        Plan([0, 2, 4, 6], 2, "interleaved", stages_per_rank=3, streamed=[2, 4]),
        Plan([0, 6], 4, "gpipe", weight_groups=3, streamed=[2], stage_groups=[2]),
    ],
    2: [
        Plan([0, 2, 6], 4, "gpipe", recompute="except_last", fusion=[(0, 2), (4, 6)]),
        Plan([0, 1, 3, 5, 6], 4, "zb_v", stages_per_rank=2, hold_in=["disk", "memory"]),
        Plan([0, 1, 3, 5, 6], 2, "interleaved", stages_per_rank=2, streamed=[0, 4]),
        Plan([0, 6], 2, "1f1b", replicas=2, shares=[1, 3], exchange_dtype="int8"),
        Plan(
            [0, 2, 6],
            5,
            "1f1b",
            stage_groups=[1, 3],
            recompute="always",
            hold_dtype="bfloat16",
        ),
        Plan([0, 2, 6], 4, "1f1b", recomputed=[(1, 3), (3, 4), (5, 6)]),
        Plan([0, 1, 3, 5, 6], 4, "zb_v", "never", stages_per_rank=2, weight_groups=4),
        Plan([0, 1, 3, 5, 6], 4, "v_min", "always", stages_per_rank=2),
    ],
    4: [
        Plan(
            [0, 3, 6],
            2,
            "zb_h1",
            replicas=2,
            exchange_dtype="fp16",
            error_feedback=True,
        ),
        Plan([0, 1, 3, 5, 6], 2, "zb_v", stages_per_rank=2, replicas=2, shares=[2, 1]),
        Plan([0, 3, 6], 3, replicas=2, schedule="1f1b", streamed=[2], fusion=[(0, 2)]),
        Plan([0, 2, 3, 5, 6], 4, "zb_h2", hold_in=["disk", "disk", "memory", "disk"]),
        Plan([0, 3, 6], 3, replicas=2, schedule="zb_h1", stage_groups=[2, 3]),
    ],
}


def runs_as_the_serial_script(comm, number):
    plan = PLANS[comm.size][number]
    losses = run(comm, plan, n_samples=12)
    assert_close(losses, serial_losses(plan.n_layers, 12), rtol=1e-5)


@pytest.mark.parametrize(
    "n_ranks, number", [(n, i) for n, plans in PLANS.items() for i in range(len(plans))]
)
def test_runs_as_the_serial_script(n_ranks, number):
    assert_on_ranks(n_ranks, runs_as_the_serial_script, number)


def test_each_field_of_a_plan_is_asked_for():
    """Whoever adds a field says here how a pipeline that runs is asked for it."""
    assert set(ANSWERS) == {field.name for field in dataclasses.fields(Plan)}


def test_best_plans_run():
    assert_on_ranks(4, run_random_plans, 0, 3, timeout=240)


@pytest.mark.matrix
@pytest.mark.parametrize("first", range(3, 191, 47))
def test_many_best_plans_run(first):
    assert_on_ranks(4, run_random_plans, first, first + 47, timeout=900)


def options_win(comm):
    plan = Plan([0, 2, 6], 4, "gpipe", recompute="always", step_seconds=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipe = Pipeline(
            make_model(),
            comm,
            n_microbatches=3,
            schedule="1f1b",
            recompute="never",
            plan=plan,
            hold_in="disk",
        )
    said = [
        str(each.message) for each in caught if "the plan is not" in str(each.message)
    ]
    assert len(said) == (comm.rank == 0)
    for words in said:
        assert "n_microbatches is 3 (4 in the plan), schedule is '1f1b'" in words
    with pipe:
        assert pipe.plan == Plan([0, 2, 6], 3, "1f1b", hold_in=["disk"] * 2)
        assert pipe.plan.step_seconds is None
        optimizer = pipe.setup(chainer.optimizers.SGD(0.1))
        pipe.step(*make_minibatch(6))
        optimizer.update()
        assert "given besides the plan: n_microbatches is 3" in str(pipe)


def test_options_win_with_a_word():
    assert_on_ranks(2, options_win)


def model_divided_equally(comm):
    """Without a plan, by any schedule; a model that is not deferred as well."""
    for schedule in ("1f1b", "zb_v", "v_half", "interleaved_zb", "auto"):
        with Pipeline(make_model(), comm, n_microbatches=2, schedule=schedule) as pipe:
            optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
            losses = []
            for _ in range(2):
                losses.append(pipe.step(*make_minibatch(12))["loss"])
                optimizer.update()
        assert_close(losses, serial_losses(6, 12), rtol=1e-5)
        assert pipe.plan.stages_per_rank == (1 if schedule in ("1f1b", "auto") else 2)
    made = Divisible(*[L.Linear(4, 4) for _ in range(5)])
    with Pipeline(made, comm, n_microbatches=2) as pipe:
        (stage,) = pipe.stages.values()
        assert stage.layer_range == [(0, 3), (3, 5)][comm.rank]
        assert stage[0] is made[stage.layer_range[0]]


def test_a_model_is_divided_equally_without_a_plan():
    assert_on_ranks(2, model_divided_equally)


def samples(n=24):
    return list(zip(*make_minibatch(n)))


def trainers_share_minibatches(comm, directory):
    """An updater, an evaluator and snapshots take what the pipeline gives them."""
    plan = Plan([0, 1, 3, 5, 6], 2, "zb_v", stages_per_rank=2, replicas=2)

    def trained(comm, plan, n_steps, path=None):
        pipe = Pipeline(make_model(), comm, plan=plan, timeout=TIMEOUT)
        optimizer = pipe.setup(chainer.optimizers.Adam())
        updater = PipelineUpdater(
            SerialIterator(samples(), 8, shuffle=False), optimizer, pipe
        )
        if path is not None:
            load_snapshot(path, pipe, optimizer)
        for _ in range(n_steps):
            updater.update()
        tests = SerialIterator(samples(10), 4, repeat=False, shuffle=False)
        return pipe, optimizer, PipelineEvaluator(tests, pipe)()

    serial = comm.Split(comm.rank, 0)
    *_, expected = trained(serial, Plan([0, 6], 2, "1f1b"), 6)
    pipe, optimizer, _ = trained(comm, plan, 3)
    save_snapshot(directory, pipe, optimizer)
    other = Plan([0, 2, 3, 4, 6], 2, "1f1b")
    *_, found = trained(comm, other, 3, directory)
    assert_close(found["main/loss"], expected["main/loss"], rtol=1e-4)


def test_trainers_share_minibatches(tmp_path):
    assert_on_ranks(4, trainers_share_minibatches, str(tmp_path / "snapshot"))


def layers_move(comm):
    """With one optimizer for two stages of a rank."""
    plan = Plan([0, 1, 3, 5, 6], 2, "interleaved", stages_per_rank=2)
    with Pipeline(make_model(), comm, plan=plan, timeout=TIMEOUT) as pipe:
        optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
        losses = [pipe.step(*make_minibatch(12))["loss"]]
        optimizer.update()
        rebalance(pipe, optimizer, [0, 2, 3, 4, 6], make_model)
        assert pipe.plan.cuts == [0, 2, 3, 4, 6]
        losses.append(pipe.step(*make_minibatch(12))["loss"])
        optimizer.update()
    assert_close(losses, serial_losses(6, 12), rtol=1e-5)


def test_layers_move_in_a_planned_pipeline():
    assert_on_ranks(2, layers_move)


def mixed_precision_by_a_plan(comm):
    plan = Plan([0, 1, 3, 5, 6], 2, "zb_v", stages_per_rank=2, replicas=2)
    mixed = MixedPrecision(chainer.optimizers.MomentumSGD(0.1), comm=comm)
    with Pipeline(
        to_float16(make_model()), comm, plan=plan, loss_scale=mixed.loss_scale
    ) as pipe:
        optimizer = pipe.setup(mixed)
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
        for _ in range(3):
            pipe.step(*pipe.my_part(*make_minibatch(12)))
            optimizer.update()
        assert optimizer.t == 3
        assert all(
            p.dtype == np.float16 for s in pipe.stages.values() for p in s.params()
        )


def test_mixed_precision_by_a_plan():
    assert_on_ranks(4, mixed_precision_by_a_plan)


def given_grid(comm):
    """A user's grid keeps its placement; a loop by hand gives each replica its part."""
    plan = Plan([0, 2, 6], 2, "1f1b", replicas=2, shares=[1, 2])
    with (
        Grid(comm, 2, placement="replicas_together") as grid,
        Pipeline(make_model(), grid, plan=plan, timeout=TIMEOUT) as pipe,
    ):
        assert pipe.grid is grid and not pipe.shares_minibatches
        assert grid.shares == plan.shares
        optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
        losses = []
        for _ in range(2):
            losses.append(pipe.step(*pipe.my_part(*make_minibatch(12)))["loss"])
            optimizer.update()
    assert_close(losses, serial_losses(6, 12), rtol=1e-5)


def test_a_grid_that_is_given():
    assert_on_ranks(4, given_grid)


def measured_model():
    np.random.seed(0)
    widths = [20, 60, 10, 40, 40, 5]
    pairs = zip(widths, widths[1:])
    return Divisible(*[f for pair in pairs for f in (L.Linear(*pair), F.sigmoid)])


def runs_what_is_predicted(comm, schedules, recompute):
    """The same actions in the same order."""
    random = np.random.RandomState(1)
    x = random.standard_normal((12, 20)).astype(np.float32)
    t = random.randint(0, 5, 12).astype(np.int32)
    plan = costs = None
    if comm.rank == 0:
        model = measured_model()
        costs = [profile(model, x[:n], t[:n], repeat=2) for n in (3, 12)]
        plan = best_plan(
            costs,
            Machine(comm.size, memory=1e9, network=Network(1e9, 1e-5)),
            schedules=schedules,
            recompute=[recompute],
            pipeline_ranks=[comm.size],
            microbatches=[3, 4],
        )
    plan, costs = comm.bcast((plan, costs))
    with Pipeline(measured_model(), comm, plan=plan, timeout=TIMEOUT) as pipe:
        pipe.step(x, t)
        timeline = pipe.timeline()
        predicted = simulate_plan(plan, costs)
        for rank in range(comm.size):
            mine_done, theirs = (
                [e.what for e in each.rank_events(rank) if e.category in "FBIWR"]
                for each in (timeline, predicted)
            )
            assert mine_done == theirs


@pytest.mark.parametrize(
    "schedules, recompute",
    [
        pytest.param(["1f1b", "gpipe", "zb_h1"], "never", marks=pytest.mark.matrix),
        (["zb_v", "interleaved"], "never"),
        (["1f1b", "gpipe"], "except_last"),
    ],
)
def test_runs_what_is_predicted(schedules, recompute):
    assert_on_ranks(2, runs_what_is_predicted, schedules, recompute)
