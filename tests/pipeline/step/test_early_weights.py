"""Weight gradients of one rank, with messages that come late."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from divisible.schedules import Schedule
from divisible.schedules.actions import Action
from divisible.schedules.rank_program import RankProgram
from pipeline.step.action_error import ActionError
from tests.pipeline.step.test_runner import INPUTS, N_MICROBATCHES, first_rank

LATE = [False] * 1000
MICROBATCHES = range(N_MICROBATCHES)
#: Weight gradients come last, so many of them may run early.
SCHEDULE = Schedule(
    [
        [Action(stage, kind, i) for kind in order for i in MICROBATCHES]
        for stage, order in enumerate(["FIW", "FIW"])
    ]
)


class Polls:
    """Answers polls: one list for each message, then that it has come."""

    def __init__(self, *answers):
        self._answers = [list(answer) for answer in answers]

    def __call__(self):
        while self._answers:
            if self._answers[0]:
                return self._answers[0].pop(0)
            self._answers.pop(0)
            return True
        return True


def layers():
    np.random.seed(0)
    return Divisible(L.Linear(4, 5), F.tanh, L.Linear(5, 4), F.relu, L.Linear(4, 3))


def prepared(model=None):
    """A first rank that has run one step, so that it knows how long functions take."""
    model = model or layers()
    runner, notes = first_rank(layers=model)
    run(runner, model)
    return runner, notes, model


def run(runner, model, schedule=None):
    """Runs a step; returns the actions in the order of time, and the gradients."""
    schedule = schedule or SCHEDULE
    program = RankProgram.of(schedule, 0, rendezvous=False)
    stage = runner._stages[0]
    stage.begin(0)
    runner.run(program, INPUTS)
    stage.finish()
    record = runner.record
    starts = [*record.times[::2], *(piece.start for piece in record.pieces)]
    operations = program.operations
    named = [*operations, *(operations[piece.position] for piece in record.pieces)]
    in_time = [str(named[i]) for i in np.argsort(starts, kind="stable")]
    gradients = [param.grad.copy() for param in model.params()]
    return [name for name in in_time if "<" not in name and ">" not in name], gradients


def equal(ours, theirs):
    return all(map(np.array_equal, ours, theirs))


def test_a_rank_computes_in_order_while_messages_are_in_time():
    runner, _, model = prepared()
    actions, _ = run(runner, model)
    assert actions == [str(action) for action in SCHEDULE.actions[0]]


def test_weight_gradients_run_while_a_message_is_late():
    runner, notes, model = prepared()
    in_order, expected = run(runner, model)
    assert in_order.index("0W0") > in_order.index("0I1")
    # The message of 0I0 is in time; that of 0I1 is late.
    notes.is_in_time = Polls([], LATE)
    actions, gradients = run(runner, model)
    assert actions.index("0W0") < actions.index("0I1")
    assert sorted(actions) == sorted(in_order)
    assert equal(gradients, expected)


def test_a_message_interrupts_weight_gradients():
    runner, notes, model = prepared()
    _, expected = run(runner, model)
    stage = runner._stages[0]
    notes.is_in_time = Polls([], [False] * 2)
    runner._early_weights._seconds[0] = 0.0  # no patience: each poll is a function
    actions, gradients = run(runner, model)
    assert equal(gradients, expected)
    (piece,) = runner.record.pieces
    assert str(runner.record.program.operations[piece.position]) == "0W0"
    assert actions.count("0W0") == 2
    assert actions.index("0W0") < actions.index("0I1")
    durations = runner.record.durations
    starts, ends = runner.record.times[::2], runner.record.times[1::2]
    last = ends[piece.position] - starts[piece.position]
    assert durations[piece.position] == pytest.approx(last + piece.end - piece.start)
    assert runner.record.span == max(ends) - min(starts)
    assert stage.pending_bytes() == 0


def test_a_message_that_is_hardly_late_lets_nothing_run():
    runner, notes, model = prepared()
    runner._early_weights._seconds[0] = 60.0
    notes.is_in_time = Polls([], [False] * 3)
    actions, _ = run(runner, model)
    assert actions.index("0W0") > actions.index("0I1")


def test_the_first_step_runs_in_order():
    model = layers()
    runner, notes = first_rank(layers=model)
    notes.is_in_time = Polls([], LATE)
    actions, _ = run(runner, model)
    assert actions.index("0W0") > actions.index("0I1")


def test_weight_gradients_stay_behind_whole_backwards_of_their_stage():
    """A B adds to the same sums: another order would change the last bits."""
    row = "0F0 0F1 0F2 0F3 0I0 0B1 0W0 0I2 0I3 0W2 0W3"
    schedule = Schedule([row.split(), [f"1{each[1:]}" for each in row.split()]])
    runner, notes, model = prepared()
    run(runner, model, schedule)
    notes.is_in_time = lambda: False
    runner._early_weights._seconds[0] = 0.0
    actions, _ = run(runner, model, schedule)
    assert actions.index("0W0") > actions.index("0B1")
    assert actions.index("0W2") < actions.index("0I3")


class Shared(chainer.Chain):
    """A weight that a product uses, and a function whose backward is not split."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(np.ones((2, 4), np.float32))

    def forward(self, x):
        return F.concat([F.linear(x, self.W), F.maximum(x, self.W)])[:, :3]


def test_weight_gradients_keep_their_place_where_input_gradients_add_to_them():
    model = Divisible(L.Linear(4, 4), Shared())
    runner, notes, _ = prepared(model)
    notes.is_in_time = lambda: False
    runner._early_weights._seconds[0] = 0.0
    actions, _ = run(runner, model)
    assert actions == [str(action) for action in SCHEDULE.actions[0]]


def test_an_error_names_the_weight_gradients():
    runner, notes, model = prepared()
    notes.is_in_time = Polls([], LATE)
    runner._early_weights._seconds[0] = 0.0
    stage = runner._stages[0]

    def spill(microbatches):
        raise ValueError("spilt")
        yield

    stage.backward_weight = spill
    with pytest.raises(ActionError, match="0W0 failed on rank 0 .*spilt"):
        run(runner, model)


def test_an_error_of_a_poll_is_raised_as_it_is():
    runner, notes, model = prepared()

    def fail():
        raise OSError("no network")

    notes.is_in_time = fail
    with pytest.raises(OSError, match="no network"):
        run(runner, model)


def test_groups_run_as_one():
    runner, notes, model = prepared()
    rows = [
        [action for action in row if action.kind != "W"]
        + [Action(stage, "W", range(0, 2)), Action(stage, "W", range(2, 4))]
        for stage, row in enumerate(SCHEDULE.actions)
    ]
    grouped = Schedule(rows)
    _, expected = run(runner, model, grouped)
    notes.is_in_time = lambda: False
    runner._early_weights._seconds[0] = 0.0
    actions, gradients = run(runner, model, grouped)
    assert actions.index("0W0-1") < actions.index("0I2")
    assert equal(gradients, expected)
