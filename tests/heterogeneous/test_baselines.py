"""The mappings of section 4."""

import pytest

from heterogeneous import (
    method_1,
    method_h,
    method_h_rev,
    rectangular_partition,
)
from tests.heterogeneous.test_columns import CONDITION_A
from tests.heterogeneous.test_partition import PAPER, assert_tiles

TABLE_2 = (1, 1.5, 2, 2.5, 3, 3.5)
CONDITION_B = (0.63, 0.63, 0.63, 1.0, 0.63, 1.0, 1.0, 0.63)


def test_table_2():
    h, h_rev = (f(TABLE_2, 2, *PAPER) for f in (method_h, method_h_rev))
    for p in (h, h_rev):
        assert p.columns == ((0, 1, 2), (3, 4, 5))
        assert p.widths == pytest.approx((1 / 3.5, 2.5 / 3.5))
        assert p.table is None and p.communication_by_columns is None
        assert_tiles(p)
    assert h.heights == ((pytest.approx(1 / 3),) * 3,) * 2
    assert h_rev.heights == (pytest.approx((1 / 4.5, 1.5 / 4.5, 2 / 4.5)),) * 2


def test_method_1_is_equal_for_everyone():
    p = method_1(8, 4, *PAPER)
    assert {(r.n_samples, r.n_units) for r in p.rectangles} == {(256, 40)}
    assert p.communication == 2 * 26 * 1024 / 4 + 2 * 229 * 80 * 3


def test_all_groups_or_one_balance_the_computation():
    for n_groups in (1, 8):
        p = method_h_rev(CONDITION_A, n_groups, *PAPER)
        times = [r.width * r.height / CONDITION_A[r.processor] for r in p.rectangles]
        assert max(times) == pytest.approx(min(times))


@pytest.mark.parametrize("abilities", [CONDITION_A, CONDITION_B])
@pytest.mark.parametrize("n", range(2, 9))
def test_a_balanced_h_rev_is_never_below_srpm(abilities, n):
    """By equation (8): both are among the partitions of which SRPM is the best."""
    best = rectangular_partition(abilities[:n], *PAPER).communication
    for n_groups in (1, n):
        p = method_h_rev(abilities[:n], n_groups, *PAPER)
        assert best <= p.communication * (1 + 1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: method_h(TABLE_2, 4, *PAPER), "6 processors form 1 or 2 or 3 or 6 gr"),
        (lambda: method_1(5, 0, *PAPER), "n_groups is 0, but 5 processors form 1 or 5"),
        (lambda: method_1(0, 1, *PAPER), "n_processors must be 1 or more, not 0"),
        (lambda: method_h_rev([1, -1], 1, *PAPER), "ability 1 is -1"),
        (lambda: method_1(4, 1, 203, 3, 26, 9), "3 hidden units for the 4 processors"),
    ],
)
def test_what_is_no_grouping_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
