"""A pipeline in words."""

from dataclasses import replace

from divisible import Machine, Plan
from divisible.planning.conditions import Conditions
from divisible.planning.expected_costs import StagePlan
from divisible.schedules import create
from pipeline.start.description import describe

PLAN = Plan(
    [0, 6, 7],
    4,
    "1f1b",
    recompute="always",
    replicas=2,
    shares=[1, 3],
    exchange_dtype="int8",
    error_feedback=True,
    hold_in=["disk", "memory"],
    hold_dtype="bfloat16",
    streamed=[0],
    fusion=[(0, 2)],
    stages=[StagePlan(0.5, 0.0, 20, 40), StagePlan(0.25, 0.0, 20)],
    step_seconds=2.0,
    bubble=0.25,
    conditions=Conditions(Machine(4), batch=8),
)
LAYERS = ["Linear(2)", "relu", "Chain(\n  x", "<b>", "f", "g", "h"]


def described():
    schedule = create("1f1b", 2, 4)
    changes = ["n_microbatches is 4 (8 in the plan)"]
    return describe(PLAN, PLAN.cuts, schedule, LAYERS, [[0, 2], [1, 3]], changes)


def test_everything_of_a_plan():
    assert (
        "\n" + str(described())
        == """
7 layers in 2 stages on 4 ranks, 1f1b schedule, 4 microbatches
stage  rank  layers                               in flight  microbatch  memory    of
    0   0 2    0..5  Linear, relu, Chain, ..., g          2      500 ms    20 B  40 B
    1   1 3    6..6  h                                    1      250 ms    20 B
2 replicas with shares 1:3, which exchange gradients in int8, with error feedback
microbatches are recomputed: always
microbatches wait on disk on the ranks 0
activations wait in bfloat16
weights on disk: layers 0
layers that run as one function: 0..1
predicted: 2 s a step, bubble 25.0%
planned for a minibatch of 8 samples on 4 ranks, links that take no time
given besides the plan: n_microbatches is 4 (8 in the plan)"""
    )


def test_a_notebook():
    html = described().to_html()
    assert html.startswith("<div>7 layers in 2 stages on 4 ranks")
    assert html.count("<tr>") == 3 and "<td>0 2</td>" in html
    assert "<b>" not in html


def test_stages_that_no_plan_has():
    schedule = create("gpipe", 1, 2)
    text = str(describe(None, [0, 1], schedule, ["f"], [[0]]))
    assert text.splitlines()[1:] == [
        "stage  rank  layers     in flight",
        "    0     0    0..0  f          2",
    ]


def test_steps_that_wait_though_the_plan_says_otherwise():
    made_for = Conditions(Machine(4), batch=8, overlap_minibatches=True)
    schedule, ranks = create("1f1b", 2, 4), [[0, 2], [1, 3]]
    for plan in (PLAN, replace(PLAN, conditions=made_for)):
        text = str(describe(plan, PLAN.cuts, schedule, LAYERS, ranks, (), "ties"))
        line = "minibatches do not overlap: ties"
        if plan is not PLAN:
            line += ". The predicted step is of minibatches that do"
        assert line in text.splitlines()
