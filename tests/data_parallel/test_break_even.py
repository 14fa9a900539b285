"""The smallest size from which on few bits are faster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from data_parallel import break_even, measure_break_even
from data_parallel.settings import Settings


def searched(gains, times=None):
    """Returns what is found where the second gains for some sizes."""
    tried = []

    def seconds_of(n):
        tried.append(n)
        gain = gains[len(tried) - 1]
        return [(times or {}).get(n, 0.01), 0.009 if gain else 0.02]

    return break_even.search(seconds_of, MPI.COMM_SELF, 60.0), tried


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_all_larger_sizes_gain_as_well(gains):
    assert len(break_even.SIZES) == 6
    found, tried = searched(gains)
    assert tuple(tried) == break_even.SIZES
    if found is None:
        assert not gains[-1]
    else:
        place = break_even.SIZES.index(found)
        assert all(gains[place:])
        assert place == 0 or not gains[place - 1]


def test_a_size_that_takes_long_is_the_last():
    long = break_even.SIZES[2]
    found, tried = searched([False, False, True, True], {long: 1.0})
    assert found == long and tried[-1] == long


@pytest.mark.parametrize(
    "settings, given, expected",
    [
        (Settings("int8"), 7, 7),
        (Settings("int8"), 0, 0),
        (Settings("fp32"), None, 0),
        (Settings("fp8", "oyama2017"), None, 0),
    ],
)
def test_what_is_given_or_of_no_account_is_not_measured(settings, given, expected):
    args = MPI.COMM_SELF, settings, None, 10, given, pytest.fail
    assert break_even.minimum(*args) == expected


@pytest.mark.parametrize("exchange_dtype", ["int8", "fp8", "fp32"])
def test_alone_nothing_gains(exchange_dtype):
    comm = MPI.COMM_SELF.Dup()
    assert measure_break_even(comm, exchange_dtype) is None
    assert break_even.known(comm)
    comm.Free()


def test_an_unknown_exchange_dtype_is_refused():
    with pytest.raises(ValueError, match="exchange_dtype must be"):
        measure_break_even(MPI.COMM_SELF, "int3")
