"""What runs by a plan, and by what is given besides."""

import dataclasses

import pytest

from divisible import Machine, Network, Plan
from divisible.planning.conditions import Conditions
from divisible.planning.expected_costs import StagePlan
from divisible.planning.message_plan import MessagePlan
from divisible.schedules import create
from pipeline.start.plans import (
    Given,
    plan_of_stages,
    planned_network,
    put_together,
    with_new_cuts,
)

STAGES = [StagePlan(1.0, 0.0, 10)] * 2
PLAN = Plan(
    [0, 3, 5],
    4,
    "1f1b",
    recompute="always",
    stages=STAGES,
    step_seconds=2.0,
    hold_in=["disk", "memory"],
    fusion=[(0, 2)],
)


def test_a_plan_as_it_is():
    found = put_together(PLAN, Given())
    assert found.plan == PLAN and found.plan.step_seconds == 2.0
    assert found.plan.stages == tuple(STAGES)
    assert found[1:] == ("1f1b", (0, 1), ((0, 2),), 1, "auto", ())
    assert found.warning == ""
    assert [found.stages_of(rank) for rank in (0, 1)] == [[(0, 3)], [(3, 5)]]


@pytest.mark.parametrize(
    "given, held, words",
    [
        ({"n_microbatches": 8}, None, "n_microbatches is 8 (4 in the plan)"),
        ({"schedule": "gpipe"}, None, "schedule is 'gpipe' ('1f1b' in the plan)"),
        ({"recompute": "never"}, None, "recompute is 'never' ('always' in the plan)"),
        ({"recompute": [3, 4]}, None, "recomputed is ((3, 5),) (() in the plan)"),
        ({"fuse": "none"}, None, "fuse is 'none' (((0, 2),) in the plan)"),
        ({"schedule": create("zb_h1", 2, 6)}, None, "n_microbatches is 6 (4 in the"),
        (
            {},
            ["memory", None],
            "hold_in is ('memory', 'memory') (('disk', 'memory') in the plan)",
        ),
    ],
)
def test_what_is_given_wins(given, held, words):
    """With a word, and without predictions of what does not run."""
    found = put_together(PLAN, Given(**given), held)
    assert words in found.warning
    assert "does not hold" in found.warning or "do not hold" in found.warning
    assert found.plan.step_seconds is None and found.plan.stages is None
    for name, value in given.items():
        if isinstance(value, (int, str)) and name != "fuse":
            assert getattr(found.plan, name) == value


def test_the_same_besides_is_no_change():
    given = Given(4, "1f1b", "always", PLAN.fusion)
    assert put_together(PLAN, given, ["disk", "memory"]).changes == ()


@pytest.mark.parametrize(
    "plan, given, words",
    [
        (PLAN, {"schedule": "zb_v"}, "has 1 stage on each of 2 ranks"),
        (PLAN, {"schedule": create("1f1b", 3, 4)}, "has 3 stages on 3 ranks, but"),
        (PLAN, {"schedule": "2f2b"}, "there is no schedule '2f2b'"),
        (Plan([0, 3, 5]), {}, "n_microbatches is missing, and the plan"),
    ],
)
def test_what_does_not_go_together(plan, given, words):
    with pytest.raises(ValueError, match=words):
        put_together(plan, Given(**given))


def test_what_a_plan_leaves_open():
    """Cuts alone, as `partition` finds them, and several stages without a schedule."""
    assert put_together(Plan([0, 3, 5]), Given(2)).schedule == "1f1b"
    several = Plan([0, 1, 2, 3, 4], 2, stages_per_rank=2)
    found = put_together(several, Given())
    assert found.schedule == "interleaved" and found.stage_ranks == (0, 1, 0, 1)
    found = put_together(dataclasses.replace(several, schedule="zb_v"), Given(), None)
    assert found.stages_of(0) == [(0, 1), (3, 4)]


def test_a_schedule_that_is_chosen_later_keeps_the_placement():
    plan = Plan([0, 1, 2, 3, 4], 2, "zb_v", stages_per_rank=2)
    assert put_together(plan, Given(schedule="auto")).stage_ranks == (0, 1, 1, 0)


@pytest.mark.parametrize(
    "planned, given, overlap, is_changed",
    [
        (None, "auto", "auto", False),
        (True, "auto", "auto", False),
        (False, "auto", False, False),
        (True, True, True, False),
        (True, False, False, True),
    ],
)
def test_minibatches_overlap_as_the_plan_predicts(planned, given, overlap, is_changed):
    made_for = Conditions(Machine(2), batch=8, overlap_minibatches=planned)
    plan = dataclasses.replace(PLAN, conditions=made_for)
    found = put_together(plan, Given(overlap_minibatches=given))
    assert found.overlap_minibatches == overlap
    assert bool(found.changes) == is_changed
    assert (found.plan.step_seconds is None) == is_changed


def test_stages_without_a_plan():
    assert plan_of_stages([0, 1, 2, 3], [0, 1, 0]) is None
    plan = plan_of_stages([0, 1, 2], [0, 1], schedule="1f1b", replicas=2)
    assert plan.n_ranks == 4


def test_other_cuts_have_no_predictions():
    assert with_new_cuts(PLAN, [0, 3, 5]) is PLAN
    other = with_new_cuts(PLAN, [0, 2, 5])
    assert other.cuts == [0, 2, 5] and other.stages is None


def test_the_links_of_a_pipeline():
    """Those of the slowest replica."""
    machine = Machine(4, network=Network(bandwidth=[4e6, 1e6, 3e6]))
    conditions = Conditions(machine, batch=8)
    plan = Plan([0, 3, 5], 4, "1f1b", replicas=2, conditions=conditions)
    assert planned_network(plan).bandwidth.tolist() == [3e6]
    assert planned_network(PLAN) is planned_network(None) is None


def test_a_given_dtype_of_messages_is_for_all_edges():
    messages = [MessagePlan("int8", "bf16", "slow"), MessagePlan()]
    plan = Plan([0, 1, 2, 3], 2, "1f1b", messages=messages, step_seconds=1.0)
    found = put_together(plan, Given())
    assert found.plan == plan and not found.changes
    found = put_together(plan, Given(message_dtype="int4"))
    assert found.plan.messages == (MessagePlan("int4", "int4"),) * 2
    assert found.plan.step_seconds is None
    assert found.changes == (
        "message_dtype is 'int4' (int8 forward, bf16 backward; fp32 in the plan)",
    )
    # A plan that says nothing about messages is not changed by it.
    assert not put_together(Plan([0, 1, 3], 2), Given(message_dtype="int8")).changes
