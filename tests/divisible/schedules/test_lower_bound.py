import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import schedules
from divisible.schedules.costs import Costs
from divisible.schedules.lower_bound import above, greatest_sum, lower_bound
from divisible.schedules.recomputation import RECOMPUTATIONS, recompute
from divisible.schedules.simulator import LINKS, simulate
from divisible.schedules.timeline import Timeline
from tests.support.examples import examples
from tests.support.exhaustive import shortest
from tests.support.schedules import grouped_schedules, named_schedules

# Sums of these are exact.
seconds = st.integers(0, 16).map(lambda n: n / 8)


def costs_of(data, d, m=None):
    def values(*shape):
        n = int(np.prod(shape))
        drawn = st.lists(seconds, min_size=n, max_size=n)
        return np.reshape(data.draw(drawn), shape)

    shape = (d,) if m is None else (d, m)
    return Costs(
        *(values(*shape) for _ in range(3)),
        transfer=values(d - 1),
        latency=values(d - 1),
        transfer_backward=data.draw(st.sampled_from([None, values(d - 1)])),
        coding_forward=values(d),
        coding_backward=values(d),
    )


@examples(150)
@given(st.data())
def test_no_schedule_is_shorter_than_its_bound(data):
    schedule = data.draw(st.one_of(named_schedules(), grouped_schedules()))
    schedule = recompute(schedule, data.draw(st.sampled_from(RECOMPUTATIONS)))
    if data.draw(st.booleans()):
        schedule = schedule.forward_only()
    m = data.draw(st.sampled_from([None, schedule.n_microbatches]))
    costs = costs_of(data, schedule.n_stages, m)
    modes = [{"links": links} for links in LINKS] + [{"overlap": False}]
    for options in modes:
        timeline = simulate(schedule, costs, **options)
        # Not Timeline.bound, which is at most the makespan.
        assert timeline.find_bound() <= timeline.makespan
        # At least the work of each rank, and at least what without messages is.
        assert timeline.bound >= timeline.busy.max(initial=0.0)


@examples(30)
@given(st.data())
def test_no_order_of_all_is_shorter(data):
    stage_ranks, m = data.draw(
        st.sampled_from(
            [([0], 3), ([0, 1], 2), ([0, 1, 2], 1), ([0, 1, 0], 1), ([0, 1, 1, 0], 1)]
        )
    )
    costs = costs_of(data, len(stage_ranks), m)
    # The order does not matter, so it need not be a good one.
    schedule = schedules.list_schedule(costs, m, stage_ranks=stage_ranks)
    timeline = simulate(schedule, costs)
    least = shortest(costs, m, stage_ranks)
    assert timeline.find_bound() <= least <= timeline.makespan


@pytest.mark.parametrize("d, m", [(2, 2), (3, 8), (4, 8), (6, 12)])
def test_the_bound_of_equal_stages_is_reached(d, m):
    costs = Costs(1, 1, 1)
    # The last rank waits for the first microbatch, and then never again.
    least = 3 * m + d - 1
    for schedule in (schedules.zero_bubble_h1(d, m), schedules.gpipe(d, m)):
        timeline = simulate(schedule, costs)
        assert timeline.bound == least
        assert timeline.gap == pytest.approx(timeline.makespan / least - 1)
    assert simulate(schedules.zero_bubble_h1(d, m), costs).gap == 0


def test_a_slow_link_counts():
    schedule, costs = schedules.gpipe(3, 4), Costs(1, 1, 1, transfer=[0, 10])
    # The first input gradient reaches rank 0 after 25 s; then come I and W of all.
    assert simulate(schedule, costs).bound == (2 + 10 + 2 + 10 + 1) + 4 * 2
    # The link to the last rank is free from 2 s on; after the fourth message there is
    # F of the last stage, I of all, and a message back.
    forth = 2 + 4 * 10 + 1 + 1 + 10 + 1 + 1 + 1
    assert simulate(schedule, costs, links="serial").bound == forth
    # Both ways share the link: eight messages, and I and W of two stages.
    both = 2 + 8 * 10 + 1 + 1 + 1
    assert simulate(schedule, costs, links="shared").bound == both
    assert simulate(schedule, costs, overlap=False).bound >= both


def test_what_ranks_do_after_their_last_action():
    schedule, costs = schedules.zero_bubble_h1(2, 3), Costs(1, 1, 1)
    assert lower_bound(schedule, costs) == 10
    # Rank 0 computes for 9 s, and rank 1 from 1 s to 10 s.
    assert lower_bound(schedule, costs, after=[2.5, 0]) == 11.5
    assert lower_bound(schedule, costs, after=[0.5, 0]) == 10
    assert lower_bound(schedule, costs, after=2) == 12


def test_choices_of_some_work():
    # The first piece alone has a late head, and the second one a long tail.
    head, work, tail = np.array([[8.0, 0.0, 0.0], [2.0, 1.0, 5.0], [0.0, 7.0, 0.0]])
    assert greatest_sum(np.array([0, 0, 0]), head, work, tail) == 10.0
    assert greatest_sum(np.array([0, 1, 1]), head, work, tail) == 10.0
    assert greatest_sum(np.array([0, 0, 0]), head, work * [0, 1, 1], tail) == 8.0
    nothing = np.zeros(0)
    assert greatest_sum(nothing, nothing, nothing, nothing) == 0


def test_a_measured_timeline_has_no_bound(tmp_path):
    timeline = Timeline([(0, "0F0", 0.0, 1.0)])
    assert timeline.bound is None and timeline.gap is None
    assert "bound" not in timeline.summary()
    timeline.save(tmp_path / "t.json")
    assert Timeline.load(tmp_path / "t.json").bound is None


def test_the_bound_is_saved(tmp_path):
    timeline = simulate(schedules.one_f_one_b(4, 8), Costs(1, 1, 1))
    timeline.save(tmp_path / "t.json")
    loaded = Timeline.load(tmp_path / "t.json")
    assert loaded.bound == timeline.bound == 27
    assert "\nat most 22.3% above the bound, 27 s\n" in loaded.summary()


def test_no_time_at_all():
    timeline = simulate(schedules.gpipe(2, 2), Costs(0, 0, 0))
    assert timeline.bound == 0 and timeline.gap == 0


@pytest.mark.parametrize(
    "gap, percent", [(0.0, "0.0"), (1e-12, "0.0"), (0.0201, "2.1"), (0.02, "2.0")]
)
def test_percents_are_rounded_up(gap, percent):
    assert above(gap) == f"at most {percent}% above the bound"
