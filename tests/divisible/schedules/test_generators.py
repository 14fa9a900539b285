import doctest
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divisible.schedules import (
    NAMES,
    create,
    gpipe,
    interleaved,
    interleaved_zb,
    list_schedule,
    looped_bfs,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from divisible.schedules.actions import ScheduleError
from divisible.schedules.catalogue import CATALOGUE, ONE_PER_RANK
from divisible.schedules.costs import Costs
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from tests.support.examples import examples
from tests.support.processes import ROOT
from tests.support.program_validation import check_programs
from tests.support.schedules import UNIT, checked, stages_per_rank

GOLDEN = Path(__file__).parent / "golden"
EXPLANATION = ROOT / "docs" / "explanation" / "schedules.rst"

stages = st.integers(1, 16)
microbatches = st.integers(1, 64)
chunks = st.integers(1, 4)
quick = examples(40)


def ceil_to(m, d):
    return -(-m // d) * d


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem
)
def test_golden_grids(path):
    text = path.read_text()
    golden = Schedule.parse(text)
    if golden.name == "list":
        uneven = Costs([1, 2, 1], [1, 2, 2.5], [1, 1, 1], transfer=0.1)
        schedule = list_schedule(uneven, 5, 3)
    else:
        n_stages, n_ranks = golden.n_stages, golden.n_ranks
        schedule = create(golden.name, n_stages, golden.n_microbatches, n_ranks)
    assert f"{schedule}\n" == text
    assert golden == schedule
    schedule.validate()


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))
def test_every_schedule_shows_its_grid(entry):
    """The docstring's example, which runs as a doctest, is a grid of it as well."""
    *_, last = doctest.DocTestParser().get_examples(entry.make.__doc__)
    shown = Schedule.parse(last.want)
    assert shown.name == entry.name
    n_stages, n_ranks = shown.n_stages, shown.n_ranks
    assert create(entry.name, n_stages, shown.n_microbatches, n_ranks) == shown
    assert shown.stage_ranks == entry.placement.ranks(n_ranks, n_stages)
    page = EXPLANATION.read_text()
    assert re.search(rf"^{re.escape(entry.name)}: \d+ microbatch", page, re.MULTILINE)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))
def test_stages_lie_as_the_catalogue_says(entry):
    for n_ranks in (1, 2, 5):
        n_stages = n_ranks * entry.stages_per_rank
        schedule = create(entry.name, n_stages, 3)
        assert schedule == create(entry.name, n_stages, 3, n_ranks)
        assert schedule.stage_ranks == entry.placement.ranks(n_ranks, n_stages)
        assert (entry.name in ONE_PER_RANK) == (schedule.n_stages == n_ranks)


@quick
@given(stages, microbatches, st.integers(1, 9), st.integers(1, 9))
def test_gpipe_and_1f1b(d, m, forward, backward):
    costs = Costs(forward, backward, 0)
    for make, in_flight in (
        (gpipe, [m] * d),
        (one_f_one_b, [min(m, d - i) for i in range(d)]),
    ):
        schedule = make(d, m)
        report, _ = checked(schedule)
        assert list(report.in_flight) == in_flight
        assert report.stage_in_flight == report.in_flight
        assert report.pending == (0,) * d
        timeline = simulate(schedule, costs)
        assert timeline.makespan == (m + d - 1) * (forward + backward)
        assert (timeline.bubble_time == (d - 1) * (forward + backward)).all()


@quick
@given(stages, microbatches)
def test_zero_bubble_h1(d, m):
    report, makespan = checked(zero_bubble_h1(d, m))
    assert list(report.in_flight) == [min(m, d - i) for i in range(d)]
    assert list(report.pending) == [min(m, i + 1) for i in range(d)]
    assert max(report.held) == min(m, d)
    if m >= d:
        assert makespan == m * 3 + (d - 1) * (1 + 1 - 1)
    else:
        assert makespan == (m + d - 1) * 2 + 1


@quick
@given(stages, microbatches, st.tuples(*[st.integers(1, 9)] * 3))
def test_zero_bubble_h2(d, m, times):
    report, makespan = checked(zero_bubble_h2(d, m))
    assert list(report.in_flight) == [min(m, 2 * (d - i) - 1) for i in range(d)]
    assert list(report.pending) == [min(m, 2 * i + 1) for i in range(d)]
    assert max(report.held) == min(m, 2 * d - 1)
    assert makespan >= m * 3 + (d - 1)
    forward, backward_input, backward_weight = times
    if m >= 2 * d - 1 and backward_input <= 2 * forward:
        bubble = (d - 1) * (forward + max(0, backward_input - 2 * backward_weight))
        timeline = simulate(zero_bubble_h2(d, m), Costs(*times))
        assert timeline.makespan == m * sum(times) + bubble


def test_zero_bubble_h2_does_not_wait_for_messages_once_full():
    def makespans(make):
        costs = Costs(1, 1, 1, latency=1)
        return [simulate(make(4, m), costs).makespan for m in (16, 20, 40)]

    # Each further microbatch costs just its own computations.
    first, second, third = makespans(zero_bubble_h2)
    assert (second - first, third - first) == (4 * 3, 24 * 3)
    first, second, third = makespans(zero_bubble_h1)
    assert second - first > 4 * 3 and third - first > 24 * 3


@quick
@given(stages, microbatches)
def test_zero_bubble_v(d, m):
    report, makespan = checked(zero_bubble_v(d, m))
    assert max(report.held) == min(m, d)
    assert makespan == max(2 * m * 3 + (d - 1), 4 * (m + d) - 2)


def test_zero_bubble_v_has_no_steady_state_bubble():
    # Each further microbatch costs just its own computations.
    makespans = [simulate(zero_bubble_v(8, m), UNIT).makespan for m in (12, 13, 40)]
    assert makespans[1] - makespans[0] == 6
    assert makespans[2] - makespans[0] == 6 * 28


@quick
@given(stages, chunks, microbatches)
def test_interleaved(d, v, m):
    schedule = interleaved(d, v, m)
    report, makespan = checked(schedule)
    full = ceil_to(m, d)
    ahead = [min(v * full, (v - 1) * d + 2 * (d - i) - 1) for i in range(d)]
    if m == full:
        assert list(report.in_flight) == [count / v for count in ahead]
        assert makespan == (v * m + d - 1) * 3
    else:
        assert all(a <= b / v for a, b in zip(report.in_flight, ahead))
        assert makespan <= (v * full + d - 1) * 3


@quick
@given(st.integers(2, 8), st.integers(1, 3), st.integers(2, 4), st.integers(1, 9))
def test_interleaved_divides_the_bubble(d, groups, v, backward):
    m = d * groups
    plain = simulate(one_f_one_b(d, m), Costs(v, v * backward, 0))
    small = simulate(interleaved(d, v, m), Costs(1, backward, 0))
    assert v * small.bubble_time[0] == plain.bubble_time[0]


@quick
@given(stages, chunks, microbatches)
def test_interleaved_zb(d, v, m):
    report, makespan = checked(interleaved_zb(d, v, m))
    assert max(report.held) == min(m, d)
    assert makespan <= simulate(interleaved(d, v, m), UNIT).makespan
    if m % d == 0:
        assert makespan == v * m * 3 + (d - 1)


@quick
@given(stages, microbatches)
def test_interleaved_zb_with_one_chunk_is_zb_h1(d, m):
    assert interleaved_zb(d, 1, d * m) == zero_bubble_h1(d, d * m)


@quick
@given(stages, chunks, microbatches)
def test_looped_bfs(d, v, m):
    report, makespan = checked(looped_bfs(d, v, m))
    assert set(report.in_flight) == {m}
    if m >= d:
        assert makespan == (v * m + d - 1) * 3
    else:
        assert makespan >= (v * m + d - 1) * 3


@settings(max_examples=12)
@given(st.sampled_from(NAMES), stages, chunks, microbatches)
def test_large_schedules_round_trip_and_lower(name, d, v, m):
    schedule = create(name, d * stages_per_rank(name, v), m, d)
    assert Schedule.parse(str(schedule)) == schedule
    check_programs(lower(schedule))
    check_programs(lower(schedule.forward_only()))
    report = schedule.forward_only().validate()
    assert max(report.held) == 0


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_and_one_microbatch(name):
    per_rank = stages_per_rank(name, 1)
    schedule = create(name, per_rank, 1, 1)
    report, makespan = checked(schedule)
    assert makespan == 3 * per_rank
    assert report.held == (1.0,)
    assert lower(schedule)[0] == tuple(schedule.actions[0])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: gpipe(0, 1), "n_stages must be at least 1, not 0"),
        (lambda: one_f_one_b(1, 0), "n_microbatches must be at least 1"),
        (lambda: interleaved(2, 0, 1), "n_chunks must be at least 1"),
        (lambda: zero_bubble_v(0, 1), "n_ranks must be at least 1"),
        (lambda: create("2f2b", 4, 4), "choose one of 1f1b, zb_h1"),
        (lambda: create("interleaved", 5, 4, 2), "multiple of 2 stages"),
        (lambda: create("gpipe", 4, 4, 2), "1 stage on each rank, that is 2 on 2"),
        (lambda: create("zb_v", 3, 4), "2 stages on each rank"),
        (lambda: create("1f1b", 0, 4), "n_stages must be at least 1"),
    ],
)
def test_impossible_schedules_are_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()
