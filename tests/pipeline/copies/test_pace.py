"""Copies take their share of the time, whatever they and minibatches take."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.copies.pace import SHARE, Pace

SECONDS = st.floats(1e-3, 10)


@given(SECONDS, SECONDS)
def test_copies_take_their_share_at_most(copy, step):
    pace = Pace()
    pace.note([(copy, step)])
    assert copy <= SHARE * step * pace.every * (1 + 1e-9)
    # And they are made as often as that allows.
    assert pace.every == 1 or copy > SHARE * step * (pace.every - 1) * (1 - 1e-9)


def test_the_first_copies_which_are_slow_do_not_count_for_long():
    pace = Pace()
    pace.note([(9.0, 0.0)])
    assert pace.every == 1
    pace.note([(0.02, 1.0), (0.03, 1.0)])
    assert pace.every == 1
    for _ in range(3):
        pace.note([(0.3, 1.0)])
    assert pace.every == 10
