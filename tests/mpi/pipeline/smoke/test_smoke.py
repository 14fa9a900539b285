"""``divisible smoke`` on real ranks."""

import json
import os
import subprocess
import time

import numpy as np
import pytest

from divisible import Machine
from divisible.communication.errors import StallError
from pipeline.smoke import measuring
from pipeline.smoke.facts import RankFacts
from pipeline.smoke.judging import judge
from pipeline.smoke.on_ranks import measure
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import LOAD, ROOT, launcher
from tests.support.supervisors import divisible


def test_measures_two_ranks_and_writes_a_machine(tmp_path):
    """The verdict is that on the machine of the test, whatever it is."""
    result = subprocess.run(
        divisible(
            *("smoke", "-n", 2, "--launcher", launcher(), "--timeout", 100),
            *("--hosts-file", "hosts.txt"),
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120 * LOAD,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    output = result.stdout + result.stderr
    assert result.returncode in (0, 1), output
    word = ("PASS", "FAIL")[result.returncode]
    last = result.stdout.strip().splitlines()[-1]
    assert last == f"{word}: {1 - result.returncode} of 1", output
    assert "Mbit/s" in output
    machine = Machine.load(tmp_path / "machine.json")
    assert machine.ranks == 2
    assert machine.links().bandwidth[0] > 1e6
    about = json.loads((tmp_path / "machine.json").read_text())["about"]
    (host,) = about["hosts"]
    assert host["passed"] == (result.returncode == 0)
    hosts = (tmp_path / "hosts.txt").read_text()
    assert hosts == (f"{host['host']}:2\n" if host["passed"] else "")
    for fault in host["faults"]:
        assert f"FAIL {host['host']}: {fault.split()[0]}" in output
    ranks = host["ranks"]
    for name in ("chainer_seconds", "kernel_seconds", "cpu_share", "copied_bytes"):
        assert all(rank[name] > 0 for rank in ranks)
    # One rank of the host measures the disk.
    assert [rank["disk_read"] is None for rank in ranks] == [False, True]
    assert ranks[0]["threads"] == 1
    assert ranks[0]["versions"] == ranks[1]["versions"]


def other_version(comm):
    """On a rank with another version, nothing is measured."""
    own = measuring.versions
    if comm.rank == 1:
        measuring.versions = lambda: {**own(), "divisible": "0.0.1 of other sources"}
    try:
        found = measure(comm, 60.0)
    finally:
        measuring.versions = own
    assert not found.links
    assert [type(rank) for rank in found.ranks] == [RankFacts] * comm.size
    verdicts = judge(*found)
    (fault,) = verdicts[0].faults
    assert "divisible is 0.0.1 of other sources" in fault


def late_rank(comm):
    """Rank 1 never begins to measure, so the others stop at their deadline."""
    if comm.rank == 0:
        begun = time.monotonic()
        with pytest.raises(StallError, match="rank 1"):
            measure(comm, 1.0)
        assert time.monotonic() - begun < 10 * LOAD
    else:
        time.sleep(3.0)
        # What rank 0 waits for, so that MPI can end.
        sizes = np.empty(comm.size, np.int64)
        comm.Iallgather(np.zeros(1, np.int64), sizes).Wait()


def every_case(comm):
    other_version(comm)
    late_rank(comm.Dup())


def test_ranks_of_other_versions_and_ranks_that_do_not_come():
    assert_on_ranks(2, every_case)
