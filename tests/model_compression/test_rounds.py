import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_compression.rounds import Try, bytes_at, next_way


@given(st.integers(1, 6), st.integers(1, 20), st.floats(0, 1))
def test_rounds_end_near_the_last_way_that_is_kept(n_rounds, most, possible):
    tries = []
    while (way := next_way(tries, n_rounds, most)) is not None:
        assert 0 < way <= 1
        assert way not in [each.way for each in tries]
        tries.append(Try(way, way <= possible))
        assert len(tries) <= most
    good = max((each.way for each in tries if each.is_kept), default=0.0)
    if len(tries) < most:
        # As near as a quarter of a round, or at the end of the way.
        assert good == 1 or good + 0.25 / n_rounds + 1e-9 >= possible
        assert good <= possible


def test_the_last_round_may_be_the_wanted_one():
    tries = []
    for number in range(1, 8):
        tries.append(Try(next_way(tries, 7, 9), True))
        assert tries[-1].way == pytest.approx(number / 7)
    assert next_way(tries, 7, 9) is None


def test_bytes_fall_by_equal_parts():
    found = [bytes_at(k / 4, 1600, 100) for k in range(5)]
    assert found == pytest.approx([1600, 800, 400, 200, 100])
