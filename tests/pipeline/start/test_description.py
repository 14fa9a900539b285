"""A pipeline in words."""

from dataclasses import replace
from types import SimpleNamespace

import chainer
import chainer.links as L
import numpy as np

from divisible import Divisible, Machine, Plan, trace_memory
from divisible.planning.conditions import Conditions
from divisible.planning.expected_costs import StagePlan
from divisible.schedules import create
from pipeline.start.description import describe, ranks_of_stages

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


def with_memory(model, memory, n_microbatches=4):
    schedule = create("1f1b", 2, n_microbatches)
    place = None, [0, 2, 4], schedule, model.model_layers, [[0], [1]]
    return str(describe(*place, memory=memory))


def test_memory_from_shapes_of_each_rank():
    model = Divisible(*(L.Linear(64, 64) for _ in range(4)))
    x, adam = np.ones((8, 64), np.float32), chainer.optimizers.Adam()
    text = with_memory(model, trace_memory(model, x, optimizer=adam))
    *_, head, first, second = text.splitlines()
    assert head == "memory from shapes, for microbatches of 8 samples:"
    # Two layers of 64 * 65 float32, and twice as much for Adam. The first stage holds
    # two microbatches of an input, the array between the layers and an output, a
    # message from either side, and room for two gradients of the output.
    fixed = "parameters 32.5 KiB, gradients 32.5 KiB, optimizer 65.0 KiB"
    assert fixed in first and fixed in second
    assert first.startswith("  rank 0: 150.0 KiB: ")
    assert first.endswith("activations and messages 20.0 KiB")
    assert second.startswith("  rank 1: ")


def test_memory_of_another_model_or_of_unknown_shapes_is_not_shown():
    model = Divisible(*(L.Linear(64, 64) for _ in range(4)))
    x = np.ones((8, 64), np.float32)
    other = trace_memory(Divisible(L.Linear(64, 64)), x)
    assert "memory is not shown: the memory is of a model of 1 layers" in with_memory(
        model, other
    )
    unknown = trace_memory(Divisible(*model[:3], L.Linear(5, 5)), x)
    unknown = with_memory(Divisible(*model[:3], L.Linear(5, 5)), unknown)
    assert "memory is not shown: the memory of ranks is unknown: shapes" in unknown


def test_ranks_of_stages_with_and_without_replicas():
    assert ranks_of_stages(None, (0, 1, 1, 0)) == [[0], [1], [1], [0]]
    grid = SimpleNamespace(
        n_replicas=2, rank_of=lambda replica, rank: 2 * replica + rank
    )
    assert ranks_of_stages(grid, (0, 1)) == [[0, 2], [1, 3]]
