import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import Costs, Schedule, ScheduleError, create, group_stages
from divisible.schedules.automatic import ScheduleTrial
from divisible.schedules.catalogue import CATALOGUE, TRIED_BY_DEFAULT, placed
from divisible.schedules.groups import group_weights
from divisible.schedules.minibatches import repeated
from divisible.schedules.pipedream import pipedream_2bw
from divisible.schedules.recomputation import RECOMPUTATIONS, recompute
from divisible.schedules.weight_versions import n_carried, n_copies, n_weights, turns
from tests.support.examples import examples

GOLDEN = """\
pipedream_2bw, 3 minibatches: 12 microbatches, 3 stages on ranks 0 1 2
step       0    1    2    3    4    5    6    7    8    9   10   11   12   13   14   15   16   17   18   19   20   21   22   23   24   25   26   27
rank 0   0F0  0F1  0F2    .    .  0B0  0F3  0B1  0F4  0B2  0F5  0B3  0F6  0B4  0F7  0B5  0F8  0B6  0F9  0B7 0F10  0B8 0F11  0B9    . 0B10    . 0B11
rank 1     .  1F0  1F1    .  1B0  1F2  1B1  1F3  1B2  1F4  1B3  1F5  1B4  1F6  1B5  1F7  1B6  1F8  1B7  1F9  1B8 1F10  1B9 1F11 1B10    . 1B11    .
rank 2     .    .  2F0  2B0  2F1  2B1  2F2  2B2  2F3  2B3  2F4  2B4  2F5  2B5  2F6  2B6  2F7  2B7  2F8  2B8  2F9  2B9 2F10 2B10 2F11 2B11    .    ."""  # noqa: E501


def letters(schedule, numbers):
    return " ".join(str(schedule.action(number)) for number in numbers)


def test_a_rank_runs_carried_backwards_between_its_next_forwards():
    schedule = pipedream_2bw(n_stages=3, n_microbatches=4)
    assert n_carried(schedule).tolist() == [2, 1, 0]
    first, later, last = (letters(schedule, each) for each in turns(schedule, 0))
    assert first == "0F0 0F1 0F2 0B0 0F3 0B1"
    assert later == "0F0 0B2 0F1 0B3 0F2 0B0 0F3 0B1"
    assert last == "0B2 0B3"


@examples(40)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 5))
def test_no_flush(d, m, k):
    """All that is run, memory, and time, for any number of minibatches."""
    single = pipedream_2bw(d, m)
    report = single.validate()
    assert list(report.in_flight) == [min(m, d - i) for i in range(d)]
    run = repeated(single, k)
    if k > 1:
        assert run.weight_versions == 1
    # Proves F before B, every microbatch once, and the absence of deadlocks.
    assert run.validate().in_flight == report.in_flight
    # A minibatch's forwards begin after all backwards of the last but one: two versions
    # of the weights are enough.
    for rank in range(d):
        actions = [(a.kind, a.microbatch // m) for a in run.actions[rank]]
        for number in range(2, k):
            begins = actions.index(("F", number))
            assert ("B", number - 2) not in actions[begins:]
    assert n_weights(single).tolist() == [1 + (min(m, d - i) > 1) for i in range(d)]
    if m >= d:
        timeline = simulate(single, Costs(1, 1, 1), n_minibatches=k)
        assert timeline.makespan == (k * m + d - 1) * 3


def test_golden_grid_of_several_minibatches():
    assert str(repeated(pipedream_2bw(3, 4), 3)) == GOLDEN


def test_no_rank_waits_in_the_steady_state():
    timeline = simulate(pipedream_2bw(4, 8), Costs(1, 1, 1), n_minibatches=20)
    assert timeline.minibatch_seconds == 8 * 3
    # The pipeline fills and drains once.
    assert (timeline.bubble_time == 3 * 3).all()
    flushed = simulate(create("1f1b", 4, 8), Costs(1, 1, 1), n_minibatches=20)
    assert flushed.minibatch_seconds == (8 + 3) * 3


def test_an_update_follows_the_turn_after_its_minibatch():
    costs = Costs(1, 1, 1, update=0.5)
    timeline = simulate(pipedream_2bw(2, 2), costs, n_minibatches=3)
    rows = [[], []]
    for event in sorted(timeline, key=lambda event: (event.start, event.end)):
        rows[event.rank].append(str(event.what))
    update = "update of stage {}"
    assert rows[0] == [
        *["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2"],
        update.format(0),
        *["0F4", "0B3", "0F5", "0B4"],
        update.format(0),
        "0B5",
        update.format(0),
    ]
    # Nothing is carried on the last rank, so the last two updates are one event.
    assert rows[1].count(update.format(1)) == 2
    last = [event for event in timeline if event.rank == 1][-1]
    assert last.end - last.start == 1.0


def test_copies_of_weights_are_counted():
    costs = Costs(1, 1, 1, activation_bytes=10, weight_bytes=[100, 200, 300])
    plain = simulate(create("1f1b", 3, 4), costs)
    late = simulate(pipedream_2bw(3, 4), costs)
    assert plain.peak_memory.tolist() == [30, 20, 10]
    # Weights and gradients twice, or gradients alone.
    assert late.peak_memory.tolist() == [30 + 2 * 100, 20 + 2 * 200, 10 + 300]
    assert n_copies(create("1f1b", 3, 4)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("when", RECOMPUTATIONS)
def test_recomputed_forwards_are_carried_with_their_backwards(when):
    schedule = recompute(pipedream_2bw(3, 5), when)
    assert schedule.weight_versions == 2
    schedule.validate()
    _, later, last = turns(schedule, 0)
    if when == "always":
        assert letters(schedule, later)[:19] == "0F0 0R3 0B3 0F1 0R4"
        assert letters(schedule, last) == "0R3 0B3 0R4 0B4"
    repeated(schedule, 4).validate()


def test_nothing_chooses_it_by_itself():
    assert "pipedream_2bw" not in TRIED_BY_DEFAULT
    assert CATALOGUE["pipedream_2bw"].weight_versions == 2
    assert "pipedream_2bw" not in [each.name for each in placed([0, 1, 2], 6)]
    trial = ScheduleTrial([0, 1], 2, "never")
    for _ in range(4):
        trial.note(lambda: simulate(create("zb_h1", 2, 2), Costs(1, 1, 1)))
    assert trial.choose().weight_versions == 1


def test_the_text_has_the_number_of_versions():
    schedule = pipedream_2bw(2, 2)
    assert Schedule.parse(str(schedule)) == schedule
    plain = Schedule.parse(str(schedule).replace(", 2 weight versions", ""))
    assert plain != schedule and plain == create("1f1b", 2, 2)
    assert schedule.forward_only().weight_versions == 1


@pytest.mark.parametrize(
    "rows, reason",
    [
        ([["0F0", "0I0", "0W0"]], "whole backwards"),
        ([["0F0", "1F0", "1B0", "0B0"]], "one stage on each rank, but 2 stages"),
        ([["0F0", "0F1", "0B0", "0B1"]], "the last stage runs 0B1 behind"),
        (
            [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]],
            "deadlock",
        ),
        (
            [
                ["0F0", "0F1", "0B0", "0B1"],
                ["1F0", "1F1", "1B1", "1B0"],
                ["2F0", "2B0", "2F1", "2B1"],
            ],
            "0B0 runs in its own minibatch, but needs 1B0",
        ),
        (
            [
                ["0F0", "0B0", "0F1", "0F2", "0F3", "0B1", "0B2", "0B3"],
                ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"],
            ],
            "0B0 runs before 0B3 of the minibatch before",
        ),
    ],
)
def test_schedules_that_two_versions_do_not_suit_are_refused(rows, reason):
    schedule = Schedule(rows, weight_versions=2)
    with pytest.raises(ScheduleError, match=reason):
        schedule.validate()


@pytest.mark.parametrize(
    "change", [lambda s: group_weights(s, 2), lambda s: group_stages(s, 2)]
)
def test_groups_are_refused(change):
    with pytest.raises(ScheduleError, match="two weight versions"):
        change(pipedream_2bw(2, 4))


def test_the_number_of_versions_is_checked():
    with pytest.raises(ScheduleError, match="3 weight versions; give 1 or 2"):
        Schedule([["0F0", "0B0"]], weight_versions=3)


def test_columns_of_many_minibatches_are_those_of_one_by_one():
    """One weight version: each rank's list again and again."""
    single = create("zb_h1", 3, 4)
    run = repeated(single, 3)
    for rank in range(3):
        kinds = [action.kind for action in single.actions[rank]]
        assert [action.kind for action in run.actions[rank]] == 3 * kinds
    assert np.array_equal(run.offsets, 3 * single.offsets)
