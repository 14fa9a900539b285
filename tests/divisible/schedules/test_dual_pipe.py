import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import dualpipe_v
from tests.support.examples import examples
from tests.support.schedules import UNIT, checked


@examples(60)
@given(st.integers(1, 16), st.integers(1, 64))
def test_dualpipe_v(d, m):
    report, makespan = checked(dualpipe_v(d, m))
    assert max(report.held) <= min(m, d + 0.5)
    if m >= 2 * d:
        assert max(report.held) == d + 0.5
        assert makespan == 6 * m + d - 1


@pytest.mark.parametrize("d", [2, 3, 8])
def test_there_is_no_bubble_in_steady_state(d):
    # Each further microbatch costs just its own computations.
    makespans = [simulate(dualpipe_v(d, m), UNIT).makespan for m in (16, 17, 40)]
    assert makespans[1] - makespans[0] == 6
    assert makespans[2] - makespans[0] == 6 * 24
