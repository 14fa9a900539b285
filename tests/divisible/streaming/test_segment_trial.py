"""Each candidate is timed once, and the fastest one is chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.streaming import segment_trial
from divisible.streaming.segment_trial import SegmentTrial


class Clock:
    """A clock that somebody else sets."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(segment_trial.time, "perf_counter", lambda: self.now)

    def minibatch(self, trial, seconds, n_samples=10):
        """Goes through the segments in two passes."""
        trial.count(n_samples)
        for _ in range(2):
            with trial.timing():
                self.now += seconds / 2
            self.now += 100
        trial.end_minibatch()


@given(
    seconds=st.lists(st.floats(0.01, 10), min_size=2, max_size=5, unique=True),
    first=st.floats(0, 1e-3),
)
def test_the_fastest_is_chosen(seconds, first):
    candidates = list(range(len(seconds), 0, -1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock, trial = Clock(monkeypatch), SegmentTrial(candidates)
        # Faster than all others: it is not timed.
        clock.minibatch(trial, first)
        for rows, each in zip(candidates, seconds):
            assert trial.rows == rows and not trial.is_chosen
            # A minibatch of more samples takes longer.
            clock.minibatch(trial, each * 7, 70)
        wanted = candidates[seconds.index(min(seconds))]
        assert trial.is_chosen and trial.rows == wanted
        assert trial.seconds == pytest.approx(
            {rows: each / 10 for rows, each in zip(candidates, seconds)}
        )
        clock.minibatch(trial, 0.0)
        assert trial.rows == wanted


def test_what_trains_nothing_counts_for_nothing(monkeypatch):
    clock, trial = Clock(monkeypatch), SegmentTrial([2, 1])
    for _ in range(5):
        clock.minibatch(trial, 1.0, n_samples=0)
    assert trial.rows == 2 and not trial.seconds


def test_what_another_run_has_chosen_ends_it(monkeypatch):
    clock, trial = Clock(monkeypatch), SegmentTrial([8, 4])
    trial.choose(3)
    clock.minibatch(trial, 1.0)
    assert (trial.rows, trial.is_chosen, trial.most) == (3, True, 8)
    with pytest.raises(ValueError, match="no number of rows"):
        SegmentTrial([])
