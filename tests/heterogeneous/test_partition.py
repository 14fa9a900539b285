"""Partitions tile the square, and refuse what is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterogeneous import OneToOne, integer_shares, rectangular_partition
from heterogeneous.partition import ORDERS

FIGURE_6 = (0.05, 0.10, 0.20, 0.30, 0.35)
PAPER = (203, 80, 26, 1024)


def make(abilities=FIGURE_6, n=203, m=80, l=26, s=1024, **options):  # noqa: E741
    return rectangular_partition(abilities, n, m, l, s, **options)


def assert_tiles(p):
    """Every unit of every sample is in one rectangle; areas and sides fit."""
    covered = np.zeros((p.m, p.s), np.int64)
    for r in p.rectangles:
        covered[slice(*r.units), slice(*r.samples)] += 1
        assert r.n_units >= 1 and r.n_samples >= 1
        assert r.work == r.n_units * r.n_samples
        # Within one of the exact shares, unless the least was raised.
        if min(r.n_units for r in p.rectangles) > 1:
            assert abs(r.n_units - r.height * p.m) < 1
    assert (covered == 1).all()
    assert sum(r.width * r.height for r in p.rectangles) == pytest.approx(1, abs=1e-12)
    for c, column in enumerate(p.columns):
        own = [p.rectangles[i] for i in column]
        assert sum(r.height for r in own) == pytest.approx(1, abs=1e-12)
        assert len({(r.x, r.width, r.samples, r.column) for r in own}) == 1
        for below, above in zip(own, own[1:]):
            assert above.y == pytest.approx(below.y + below.height, abs=1e-12)
        right = own[0].x + own[0].width
        beside = p.rectangles[p.columns[c + 1][0]].x if c + 1 < p.n_columns else 1
        assert right == pytest.approx(beside, abs=1e-12)


def test_figure_6():
    p = make()
    assert p.columns == ((0, 1, 2), (3, 4))
    assert (p.n_columns, p.per_column, p.n_processors) == (2, (3, 2), 5)
    assert p.widths == pytest.approx((0.35, 0.65))
    heights = [r.height for r in p.rectangles]
    assert heights == pytest.approx([1 / 7, 2 / 7, 4 / 7, 6 / 13, 7 / 13])
    assert p.communication == pytest.approx(73913.6)
    assert p.communication == pytest.approx(p.communication_by_columns.min())
    assert p.table.shape == (5, 5)


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    st.integers(12, 90),
    st.integers(12, 200),
    st.sampled_from(ORDERS),
)
def test_rectangles_tile_the_square(abilities, m, s, order):
    p = make(abilities, m=m, s=s, order=order)
    assert_tiles(p)
    whole = sum(abilities)
    for r, ability in zip(p.rectangles, abilities):
        assert r.width * r.height == pytest.approx(ability / whole, rel=1e-9)
        assert p.abilities[r.processor] == pytest.approx(ability / whole, rel=1e-12)
    assert p.communication == pytest.approx(p.communication_by_columns.min(), rel=1e-9)


def test_processors_have_the_numbers_of_their_abilities():
    order = [3, 0, 4, 2, 1]
    p = make([FIGURE_6[i] for i in order])
    assert [[order[i] for i in column] for column in p.columns] == [[0, 1, 2], [3, 4]]
    assert [r.processor for r in p.rectangles] == [0, 1, 2, 3, 4]


def test_areas_do_not_depend_on_the_unit_of_abilities():
    assert make([1e6 * a for a in FIGURE_6]).columns == make().columns
    np.testing.assert_allclose(make([20, 40, 80, 120, 140]).abilities, FIGURE_6)


def test_lines_move_when_columns_are_resized():
    p = make()
    moved = p.resized([0.10, 0.10, 0.10, 0.35, 0.35])
    assert moved.columns == p.columns
    assert moved.widths == pytest.approx((0.3, 0.7))
    assert [r.height for r in moved.rectangles] == pytest.approx(
        [1 / 3] * 3 + [0.5] * 2
    )
    assert_tiles(moved)
    assert p.resized(p.abilities).rectangles == p.rectangles


def test_a_partition_is_remade_as_it_was_made():
    twice = OneToOne(*PAPER[:3], 2048)
    p = make(FIGURE_6[::-1], order="any", cost=twice)
    again = p.remade(FIGURE_6)
    assert again == make(order="any", cost=twice)
    assert again.cost is twice and again.table is None


def test_shares_are_those_of_the_planning():
    assert integer_shares([1, 1, 2], 10) == [3, 2, 5]


WRONG = [
    ({"abilities": [1, 0, 1]}, ValueError, "ability 1 is 0: it must be positive"),
    ({"abilities": [1, -2]}, ValueError, "ability 1 is -2: it must be finite, not neg"),
    ({"abilities": [float("nan"), 1]}, ValueError, "ability 0 is nan: it must be fin"),
    ({"abilities": [1, float("inf")]}, ValueError, "ability 1 is inf: it must be fin"),
    ({"abilities": [2**62, 1e-320]}, ValueError, "ability 1 is 1e-320: it must be pos"),
    ({"abilities": ["fast"]}, TypeError, "ability 0 is 'fast': it must be a number"),
    ({"abilities": []}, ValueError, "there are no abilities"),
    (
        {"m": 2},
        ValueError,
        "2 hidden units for the 3 processors of column 0",
    ),
    ({"s": 1}, ValueError, r"1 samples for 2 columns of processors, \(\(0, 1, 2\)"),
    ({"m": 0}, ValueError, "m, the hidden units, must be 1 or more, not 0"),
    ({"n": 2.5}, TypeError, "n, the inputs must be an integer, not 2.5"),
    ({"order": "best"}, ValueError, "one of ascending, any, not 'best'"),
]


@pytest.mark.parametrize(("changed", "error", "words"), WRONG)
def test_what_is_no_partition_is_refused(changed, error, words):
    if "s" in changed or changed.get("m") == 2:
        # The cost of the example, for the columns that it leads to.
        changed = {**changed, "cost": OneToOne(*PAPER)}
    with pytest.raises(error, match=words):
        make(**changed)
