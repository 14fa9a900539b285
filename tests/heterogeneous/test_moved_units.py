"""What travels: exactly the units that somebody lacks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterogeneous import Transfer, rectangular_partition, transfers
from heterogeneous.costs import OneToOne
from heterogeneous.moved_units import between, overlap

abilities = st.lists(st.floats(0.05, 1), min_size=1, max_size=8)


def column(*units):
    """Returns processors above each other with so many units."""
    cost = OneToOne(1, sum(units), 1, 1)
    return rectangular_partition(units, 1, sum(units), 1, 1, cost=cost)


def test_ten_units_travel():
    before = column(20, 60)
    assert transfers(before, before.resized([30, 50])) == [Transfer(1, 0, 20, 30)]
    assert transfers(before.resized([30, 50]), before) == [Transfer(0, 1, 20, 30)]
    assert transfers(before, before) == []


def test_units_may_come_from_several():
    before = column(20, 25, 35)
    after = before.resized([60, 10, 10])
    assert transfers(before, after) == [
        Transfer(1, 0, 20, 45),
        Transfer(2, 0, 45, 60),
        Transfer(2, 1, 60, 70),
    ]


def held(partition):
    found = np.zeros((partition.n_processors, partition.m), bool)
    for r in partition.rectangles:
        found[r.processor, slice(*r.units)] = True
    return found


@given(abilities, st.data())
def test_everyone_gets_what_he_lacks_and_nothing_else(own, data):
    others = data.draw(
        st.lists(st.floats(0.05, 1), min_size=len(own), max_size=len(own))
    )
    before = rectangular_partition(own, 20, 40, 5, 300)
    for after in (before.resized(others), before.remade(others)):
        has, wants = held(before), held(after)
        arrived = np.zeros_like(has)
        for source, target, start, stop in transfers(before, after):
            assert has[source, start:stop].all()
            assert not (has[target, start:stop] | arrived[target, start:stop]).any()
            arrived[target, start:stop] = True
            column_of = before.rectangles[target].column
            assert before.rectangles[source].column == column_of
        assert (arrived == (wants & ~has)).all()


def test_all_units_for_everyone():
    before = rectangular_partition([1, 2, 3, 4], 20, 40, 5, 300)
    found = between(before, [(0, 40)] * 4)
    arrived = held(before)
    for source, target, start, stop in found:
        assert source != target
        arrived[target, start:stop] = True
    assert arrived.all()


def test_ranges_overlap():
    assert overlap((0, 5), (3, 9)) == (3, 5)
    start, stop = overlap((0, 3), (5, 9))
    assert start == stop


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (column(10, 10, 60), "has 3 processors, and the one before 2"),
        (column(20, 70), "has 90 hidden units, and the one before 80"),
        (rectangular_partition([1, 1], 2, 80, 1, 9), "has 2 inputs, and the one be"),
    ],
)
def test_other_processors_or_units_are_refused(after, words):
    with pytest.raises(ValueError, match=words):
        transfers(column(20, 60), after)
