"""Error feedback: what is kept, and when."""

import warnings

import numpy as np
from mpi4py import MPI

from data_parallel.arrays import Spec
from data_parallel.layout import Segment
from data_parallel.residuals import NOT_LOADED, Residuals

SPECS = [Spec("w", (2, 3), "f", False), Spec("b", (2,), "f", True)]


def lost(residuals, i, elements, value):
    residuals.lose(Segment(i, elements, slice(0, 0)), value)


def test_what_is_lost_counts_from_the_end_of_an_exchange_on():
    residuals = Residuals()
    residuals.open(SPECS)
    assert [before.tolist() for before in map(residuals.before, range(2))] == [
        [0] * 6,
        [0] * 2,
    ]
    lost(residuals, 0, slice(0, 4), np.arange(4, dtype="f"))
    lost(residuals, 0, slice(4, 6), 0)
    residuals.after(1)[:] = 7
    assert not residuals.before(0).any()
    residuals.keep()
    residuals.open(SPECS)
    assert residuals.before(0).tolist() == [0, 1, 2, 3, 0, 0]
    assert residuals.before(1).tolist() == [7, 7]
    # A step that is none replaces nothing.
    lost(residuals, 0, slice(0, 6), np.nan)
    residuals.open(SPECS)
    assert residuals.before(0).tolist() == [0, 1, 2, 3, 0, 0]


def test_names_keep_theirs_in_another_order():
    residuals = Residuals()
    residuals.open(SPECS)
    for i in range(2):
        residuals.after(i)[:] = i + 1
    residuals.keep()
    residuals.open(SPECS[::-1])
    assert residuals.before(0).tolist() == [2] * 2
    assert residuals.before(1).tolist() == [1] * 6
    residuals.open([SPECS[0]._replace(shape=(3,))])
    assert residuals.before(0).tolist() == [0] * 3


def test_nothing_is_shared_out_that_was_not_loaded_or_is_one_s_own():
    for origin in [NOT_LOADED, (1, 0)]:
        residuals = Residuals()
        residuals.open(SPECS)
        residuals.by_name["w"][:] = 3
        residuals.origin = origin
        residuals.share_out(MPI.COMM_SELF, [origin], 10)
        assert residuals.before(0).tolist() == [3] * 6
        assert residuals.origin == NOT_LOADED


def test_one_of_two_stands_for_both_with_a_warning():
    residuals = Residuals()
    residuals.open(SPECS)
    residuals.by_name["w"][:] = 3
    residuals.origin = 2, 1
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        residuals.share_out(MPI.COMM_SELF, [(2, 1)], 10)
    assert residuals.before(0).tolist() == [3] * 6
    (text,) = [str(each.message) for each in found]
    assert text.startswith("what error feedback has kept of rank 0 of 2 was not loaded")
