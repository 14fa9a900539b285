import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import schedules
from divisible.schedules.actions import Action
from divisible.schedules.costs import Costs
from divisible.schedules.minibatches import repeated
from divisible.schedules.simulator import LINKS, simulate
from divisible.schedules.timeline import Timeline
from tests.support.examples import examples
from tests.support.schedules import grouped_schedules, named_schedules

MODES = [{"links": links} for links in LINKS] + [{"overlap": False}]
# Sums of these are exact.
seconds = st.integers(0, 16).map(lambda n: n / 8)


@examples(60)
@given(st.data())
def test_each_rank_goes_on_after_its_own_update(data):
    schedule = data.draw(st.one_of(named_schedules(4, 4, 2), grouped_schedules(3, 4)))
    n, m = data.draw(st.integers(1, 3)), schedule.n_microbatches

    def values(*shape):
        size = int(np.prod(shape))
        drawn = st.lists(seconds, min_size=size, max_size=size)
        return np.reshape(data.draw(drawn), shape)

    d = schedule.n_stages
    times = [values(d, m) for _ in range(3)]
    update = values(d)
    costs = Costs(*times, values(d - 1), values(d - 1), update=update)
    options = data.draw(st.sampled_from(MODES))
    timeline = simulate(schedule, costs, n_minibatches=n, **options)
    assert timeline.n_minibatches == n
    assert timeline.find_bound() <= timeline.makespan
    for rank, row in enumerate(schedule.actions):
        events = [e for e in timeline.rank_events(rank) if e.category not in MESSAGES]
        # One thing at a time, in the order of the list.
        assert all(a.end <= b.start for a, b in zip(events, events[1:]))
        actions = [e.what for e in events if isinstance(e.what, Action)]
        assert actions == [shifted(a, i * m) for i in range(n) for a in row]
        # Each stage has its updates, each right after its last action.
        for stage in schedule.rank_stages(rank):
            own = [e for e in events if e.what == f"update of stage {stage}"]
            assert len(own) == (n if update[stage] else 0)
            ends = [
                max(
                    e.end
                    for e in events
                    if isinstance(e.what, Action)
                    and e.what.stage == stage
                    and e.what.microbatches[0] // m == i
                )
                for i in range(len(own))
            ]
            for event, end in zip(own, ends):
                assert event.end - event.start == update[stage]
                assert event.start >= end
                if options.get("overlap", True):
                    assert event.start == end
    # No slower than with a wait of all ranks.
    alone = simulate(schedule, costs, **options).makespan
    if options == {"links": "parallel"}:
        assert timeline.makespan <= n * alone


MESSAGES = ("send", "receive")


def shifted(action, by):
    microbatches = action.microbatches
    return Action.of(action.stage, action.kind, microbatches[0] + by, len(microbatches))


@pytest.mark.parametrize(
    "make, first, each",
    [
        # Rank 0 waits for the last backward in each minibatch.
        (schedules.gpipe, 33, 33),
        (schedules.one_f_one_b, 33, 33),
        (schedules.zero_bubble_h1, 27, 27),
        # After the first filling, no rank waits.
        (schedules.zero_bubble_h2, 27, 24),
    ],
)
def test_equal_stages(make, first, each):
    timeline = simulate(make(4, 8), Costs(1, 1, 1), n_minibatches=20)
    assert timeline.makespan == first + 19 * each
    assert timeline.minibatch_seconds == each
    assert simulate(make(4, 8), Costs(1, 1, 1)).minibatch_seconds == first


@pytest.mark.parametrize("options", MODES)
def test_updates_take_time(options):
    costs = Costs(1, 1, 1, update=0.5)
    timeline = simulate(schedules.gpipe(2, 2), costs, n_minibatches=2, **options)
    # Rank 1 updates while the last input gradient is used by rank 0.
    assert timeline.makespan == 2 * (9 + 0.5)
    assert timeline.minibatch_seconds == 9.5
    assert [
        (e.rank, str(e.what), e.start, e.end)
        for e in timeline
        if e.category == "other" and e.start < 9.5
    ] == [(0, "update of stage 0", 9, 9.5), (1, "update of stage 1", 7, 7.5)]


def test_a_gradient_leaves_before_the_update():
    # The last action of rank 1 is a B, whose result rank 0 needs.
    costs = Costs(1, 1, 1, transfer=1, update=5)
    for links in LINKS:
        timeline = simulate(schedules.one_f_one_b(2, 1), costs, links=links)
        assert [e.start for e in timeline.rank_events(0)] == [0, 6, 8]


def test_an_evaluation_has_no_updates():
    forward = schedules.gpipe(2, 3).forward_only()
    timeline = simulate(forward, Costs(1, 1, 1, update=9), n_minibatches=2)
    assert timeline.makespan == 7 and timeline.minibatch_seconds == 3


def test_memory_is_that_of_one_minibatch():
    costs = Costs(1, 1, 1, activation_bytes=100, pending_bytes=10)
    one, four = (
        simulate(schedules.zero_bubble_h2(3, 4), costs, n_minibatches=n) for n in (1, 4)
    )
    assert four.peak_memory.tolist() == one.peak_memory.tolist()
    assert four.peak_held.tolist() == one.peak_held.tolist()
    assert four.busy.tolist() == (4 * one.busy).tolist()


def test_saved_loaded_printed_and_drawn(tmp_path):
    costs = Costs(1, 1, 1, update=0.5)
    timeline = simulate(schedules.zero_bubble_h1(2, 3), costs, n_minibatches=3)
    timeline.save(tmp_path / "run.json")
    loaded = Timeline.load(tmp_path / "run.json")
    assert [str(e.what) for e in loaded] == [str(e.what) for e in timeline]
    assert loaded.n_minibatches == 3
    assert loaded.minibatch_seconds == pytest.approx(timeline.minibatch_seconds)
    assert loaded.summary() == timeline.summary()
    assert loaded.summary().startswith("zb_h1, 3 minibatches: ")
    pytest.importorskip("matplotlib")
    timeline.plot(tmp_path / "run.svg")
    assert "zb_h1, 3 minibatches on 2 ranks" in (tmp_path / "run.svg").read_text()


def test_one_minibatch_is_the_schedule_itself():
    schedule = schedules.gpipe(2, 2)
    assert repeated(schedule, 1) is schedule


@pytest.mark.parametrize(
    "n, kind, message",
    [
        (0, ValueError, "n_minibatches must be at least 1, not 0"),
        (1.5, TypeError, "integer"),
    ],
)
def test_refused(n, kind, message):
    with pytest.raises(kind, match=message):
        simulate(schedules.gpipe(2, 2), Costs(1, 1, 1), n_minibatches=n)
