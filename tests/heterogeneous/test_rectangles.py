"""Columns of processors have rectangles; samples are divided by the columns' widths."""

import pytest

from heterogeneous import OneToOne
from heterogeneous.rectangles import Rectangles

#: Hidden units and samples.
M, S = 80, 1024


def make(m=M, s=S):
    """Returns the columns of Fig. 6 of Ozawa et al."""
    return Rectangles(
        columns=((0, 1, 2), (3, 4)),
        widths=(0.35, 0.65),
        heights=((1 / 7, 2 / 7, 4 / 7), (6 / 13, 7 / 13)),
        abilities=(0.05, 0.10, 0.20, 0.30, 0.35),
        n=203,
        m=m,
        l=26,
        s=s,
        cost=OneToOne(203, M, 26, S),
    )


def test_each_processor_has_the_rectangle_of_figure_6():
    p = make()
    assert [r.column for r in p.rectangles] == [0, 0, 0, 1, 1]
    assert [r.samples for r in p.rectangles] == [(0, 358)] * 3 + [(358, 1024)] * 2
    # 80 units by 1/7, 2/7 and 4/7, and by 6/13 and 7/13.
    assert [r.n_units for r in p.rectangles] == [11, 23, 46, 37, 43]
    assert p.rectangles[2].y == pytest.approx(3 / 7)
    assert p.communication == pytest.approx(73913.6)


def test_samples_of_another_number():
    p = make()
    assert p.samples_of(1024) == [(0, 358), (358, 1024)]
    assert p.samples_of(3) == [(0, 1), (1, 3)]
    assert p.samples_of(1) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    "size, words",
    [
        ({"m": 2}, "2 hidden units for the 3 processors of column 0"),
        ({"s": 1}, r"1 samples for 2 columns of processors, \(\(0, 1, 2\)"),
    ],
)
def test_rectangles_without_units_or_samples_are_refused(size, words):
    with pytest.raises(ValueError, match=words):
        make(**size)
