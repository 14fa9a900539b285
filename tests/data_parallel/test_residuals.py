"""Error feedback: what is kept, and when."""

import warnings

import numpy as np
from mpi4py import MPI

from data_parallel.arrays import Spec
from data_parallel.layout import Segment
from data_parallel.residuals import NOT_LOADED, Residuals

SPECS = [Spec("w", (2, 3), "f", False), Spec("b", (2,), "f", True)]


def lost(exchange, i, elements, value):
    exchange.lose(Segment(i, elements, slice(0, 0)), value)


def test_what_is_lost_counts_from_the_end_of_an_exchange_on():
    residuals = Residuals()
    first = residuals.open(SPECS)
    assert [first.before(i).tolist() for i in range(2)] == [[0] * 6, [0] * 2]
    lost(first, 0, slice(0, 4), np.arange(4, dtype="f"))
    lost(first, 0, slice(4, 6), 0)
    first.after(1)[:] = 7
    assert not first.before(0).any()
    first.keep([True, True])
    second = residuals.open(SPECS)
    assert second.before(0).tolist() == [0, 1, 2, 3, 0, 0]
    assert second.before(1).tolist() == [7, 7]
    # A step that is none replaces nothing.
    lost(second, 0, slice(0, 6), np.nan)
    assert residuals.open(SPECS).before(0).tolist() == [0, 1, 2, 3, 0, 0]


def test_names_keep_theirs_in_another_order():
    residuals = Residuals()
    first = residuals.open(SPECS)
    for i in range(2):
        first.after(i)[:] = i + 1
    first.keep([True, True])
    second = residuals.open(SPECS[::-1])
    assert second.before(0).tolist() == [2] * 2
    assert second.before(1).tolist() == [1] * 6
    third = residuals.open([SPECS[0]._replace(shape=(3,))])
    assert third.before(0).tolist() == [0] * 3


def test_nothing_is_shared_out_that_was_not_loaded_or_is_one_s_own():
    for origin in [NOT_LOADED, (1, 0)]:
        residuals = Residuals()
        exchange = residuals.open(SPECS)
        residuals.by_name["w"][:] = 3
        residuals.origin = origin
        residuals.share_out(exchange.names, MPI.COMM_SELF, [origin], 10)
        assert exchange.before(0).tolist() == [3] * 6
        assert residuals.origin == NOT_LOADED


def test_one_of_two_stands_for_both_with_a_warning():
    residuals = Residuals()
    exchange = residuals.open(SPECS)
    residuals.by_name["w"][:] = 3
    residuals.origin = 2, 1
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        residuals.share_out(exchange.names, MPI.COMM_SELF, [(2, 1)], 10)
    assert exchange.before(0).tolist() == [3] * 6
    (text,) = [str(each.message) for each in found]
    assert text.startswith("what error feedback has kept of rank 0 of 2 was not loaded")
