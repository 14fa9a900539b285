"""Which ranks add up which hidden units."""

from hypothesis import given
from hypothesis import strategies as st

from heterogeneous import rectangular_partition
from heterogeneous.sums import segments


@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=9))
def test_segments_have_each_unit_once_with_a_rank_of_each_column(abilities):
    p = rectangular_partition(abilities, 20, 40, 5, 300)
    found = segments(p)
    assert [each.start for each in found] == [0, *(e.stop for e in found[:-1])]
    assert found[-1].stop == p.m
    for start, stop, ranks, collector in found:
        assert [p.rectangles[rank].column for rank in ranks] == list(range(p.n_columns))
        assert collector in ranks
        for rank in ranks:
            first, last = p.rectangles[rank].units
            assert first <= start < stop <= last


def test_columns_take_turns_to_collect():
    p = rectangular_partition([0.05, 0.10, 0.20, 0.30, 0.35], 203, 80, 26, 1024)
    assert [each.ranks.index(each.collector) for each in segments(p)] == [0, 1, 0, 1]
