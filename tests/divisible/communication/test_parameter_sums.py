"""Sums of parameters on one process; on several in tests/mpi."""

import math

import numpy as np
import pytest
from mpi4py import MPI

from divisible.communication.parameter_sums import ParameterSums


@pytest.mark.parametrize("comm", [None, MPI.COMM_SELF])
def test_sums_are_told_by_path(comm):
    sums = ParameterSums(comm, 10)
    assert sums.gather(["/b", "/a"], ["note"]) == [["note"]]
    assert sums.paths == ["/a", "/b"]
    positions = sums.positions(["/b", "/a", "/b"])
    reduced = sums.reduce(positions, [1.0, 2.0, 3.0], [7, 2.0**40])
    np.testing.assert_array_equal(reduced.sums, [2.0, 3.0])
    np.testing.assert_array_equal(reduced.least, [7, 2.0**40])
    np.testing.assert_array_equal(reduced.most, [7, 2.0**40])
    sums.close()
    assert sums.paths is None


def test_what_is_not_finite_passes():
    sums = ParameterSums(None, 10)
    sums.gather(["/a", "/b", "/c"])
    positions = sums.positions(["/a", "/a", "/b", "/c"])
    for nan in (math.nan, -math.nan):
        reduced = sums.reduce(positions, [math.inf, nan, math.inf, 5e-324])
        np.testing.assert_array_equal(reduced.sums, [math.nan, math.inf, 5e-324])


def test_a_new_parameter_is_named():
    sums = ParameterSums(None, 10)
    sums.gather(["/a"])
    with pytest.raises(KeyError, match="/b"):
        sums.positions(["/a", "/b"])
