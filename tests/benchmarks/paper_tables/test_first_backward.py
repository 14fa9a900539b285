import pytest

from benchmarks.paper_tables.first_backward import (
    HEADER,
    RankSeconds,
    later_to_first,
    table,
)
from divisible.schedules.timeline import Timeline


def step(first, *later):
    """Returns a step whose backwards take so many ms, and whose forwards take 2 ms."""
    events, now = [], 0.0
    seconds = [2.0] * (1 + len(later)) + [first, *later]
    for i, each in enumerate(seconds):
        kind, microbatch = "FB"[i > len(later)], i % (1 + len(later))
        events.append((0, f"0{kind}{microbatch}", now, now + each / 1e3))
        now += each / 1e3
    return Timeline([*events, (0, "update", now, now + 0.5e-3, "update")])


def test_the_first_backward_is_apart_from_the_mean_of_the_others():
    (found,) = RankSeconds.of(step(3, 4, 6))
    assert found == pytest.approx((2e-3, 3e-3, 5e-3, 0.5e-3))


def test_a_line_has_medians_of_the_steps_below_the_words_of_the_header():
    (line,) = table([step(3, 4, 6), step(3, 6, 6), step(2, 8, 8)])
    assert line.split() == ["0", "2.0", "3.0", "6.0", "2.00", "(1.67..4.00)", "0.5"]
    ends = [line.index(word) + len(word) for word in ("2.0", "3.0", "6.0", " 0.5")]
    words = ["forward", "first backward", "later ones", "update"]
    assert ends == [HEADER.index(word) + len(word) for word in words]


def test_the_finding_is_the_median_of_all_steps():
    steps = [step(3, 6), step(4, 5), step(1, 9)]
    assert later_to_first(steps) == pytest.approx(2.0)
