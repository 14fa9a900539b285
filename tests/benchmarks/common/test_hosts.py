"""A benchmark's function on emulated hosts."""

import subprocess

import pytest

from benchmarks.common.hosts import Hosts, HostsFailedError, run
from tests.support.emulated_hosts import need_emulated_hosts

#: Seconds.
DEADLINE = 60.0


def work(job):
    """Is called on each host."""
    from mpi4py import MPI

    if job["task"] == "fail":
        raise ArithmeticError("it fails")
    if job["task"] == "stay":
        MPI.COMM_WORLD.recv()
    return {"words": MPI.COMM_WORLD.gather(job["words"][MPI.COMM_WORLD.rank])}


@pytest.fixture
def pair():
    """Two hosts, as far as there is place for them."""
    need_emulated_hosts()
    return Hosts(2, 0.15, memory="256M")


def test_each_host_calls_it_and_the_first_one_answers(pair):
    job = {"task": "answer", "words": ["a b", "$c"]}
    found = run(pair, __name__, job, DEADLINE)
    assert found.pop("words") == job["words"]
    assert [2**20 < n < 2**28 for n in found.pop("counted")] == [True, True]
    assert found == {}


def test_a_failure_is_told(pair):
    with pytest.raises(HostsFailedError, match="the run on 2 hosts ended with code"):
        run(pair, __name__, {"task": "fail"}, DEADLINE)


def test_a_run_has_a_deadline(pair):
    with pytest.raises(subprocess.TimeoutExpired):
        run(pair, __name__, {"task": "stay"}, 1.0)
