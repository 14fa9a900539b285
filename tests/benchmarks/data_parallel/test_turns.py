"""Ways to average an array, in turn."""

import pytest

from benchmarks.data_parallel.exchange import WAYS
from benchmarks.data_parallel.turns import Job, measure
from data_parallel.units import PARTS
from tests.support.mpiexec import assert_on_ranks

SIZES, ROUNDS = [100, 3000], [3, 2]


def measure_some(comm, way_names):
    ways = {name: WAYS[name] and {**WAYS[name], "local_size": 1} for name in way_names}
    job = Job(ways, SIZES, ROUNDS, break_even=("fp32",), are_hosts=False)
    found = measure(comm, job)
    assert found["message"] > 0
    assert list(found["break_even"]) == ["fp32"]
    for measured, n, rounds in zip(found["sizes"], SIZES, ROUNDS):
        assert measured.elements == n
        assert list(measured.seconds) == list(measured.parts) == way_names
        for seconds in measured.seconds.values():
            assert len(seconds) == rounds and min(seconds) > 0
        for name, parts in measured.parts.items():
            assert list(parts) == (list(PARTS) if WAYS[name] else ["wire"])
            assert 0 < parts["wire"] <= max(measured.seconds[name])
        assert set(measured.sent.values()) == {0}


@pytest.mark.parametrize("names", [["MPI fp32", "int8", "oyama2017"]])
def test_ranks_time_all_ways(names):
    assert_on_ranks(2, measure_some, names)
