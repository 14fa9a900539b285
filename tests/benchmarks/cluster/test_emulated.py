"""Programs on hosts that are up, which change meanwhile."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.cluster import Cluster, ClusterError, cluster
from benchmarks.cluster.starting import as_hosts
from tests.support.matrix import matrix
from tests.support.processes import LOAD

DEADLINE = 30 * LOAD
#: Seconds for which the CPU time of a process is looked at.
WINDOW = 0.8


def output(hosts, n, code, *args, where=None):
    """Runs Python code on hosts and returns what it prints."""
    done = hosts.run(
        n,
        [sys.executable, "-c", code, *args],
        hosts=where,
        timeout=DEADLINE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


EXCHANGE = """
import subprocess, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout
everyone = comm.allgather(addresses.strip())
if comm.rank == 0:
    print(everyone, sys.argv[1:])
"""


@pytest.mark.parametrize(
    "where, addresses",
    [
        ([1, 0], ["10.77.0.2", "10.77.0.1"]),
        *matrix(
            (None, ["10.77.0.1", "10.77.0.2"]),
            ([1], ["10.77.0.2", "10.77.0.2"]),
        ),
    ],
)
def test_each_rank_is_on_its_host(hosts, where, addresses):
    text = output(hosts, 2, EXCHANGE, "two words", "$HOME", where=where)
    assert text.strip() == f"{addresses} {['two words', '$HOME']}"


MESSAGE = """
import time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
buffer = np.zeros(2**20, np.uint8)
comm.Barrier()
start = time.perf_counter()
comm.Send(buffer, 1) if comm.rank == 0 else comm.Recv(buffer, 0)
comm.Barrier()
if comm.rank == 0:
    print(time.perf_counter() - start)
"""


def test_links_have_their_rates(hosts):
    # What a host sends is limited, and what it is sent.
    for rates in [("unlimited", "8mbit"), ("8mbit", "unlimited"), ("1gbit", "1gbit")]:
        for host, rate in enumerate(rates):
            hosts.set(host, rate=rate)
        is_limited = "8mbit" in rates
        # 1 MiB at 1 MB/s, of which 256 kB pass at once. A busy machine may take long
        # for what is not limited, but not each time.
        seconds = (
            float(output(hosts, 2, MESSAGE)) for _ in range(1 if is_limited else 9)
        )
        assert any((each > 0.7) == is_limited for each in seconds), rates


NEIGHBOURS = """
import socket, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
buffer, seconds = np.zeros(2**20, np.uint8), []
for peer in (1, 2):
    comm.Barrier()
    start = time.perf_counter()
    if comm.rank == 0:
        comm.Send(buffer, peer)
    elif comm.rank == peer:
        comm.Recv(buffer, 0)
    comm.Barrier()
    seconds.append(time.perf_counter() - start)
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
found = comm.gather((socket.gethostname(), node.size))
if comm.rank == 0:
    print(found, *seconds, sep="; ")
"""


def test_ranks_share_memory_on_one_host_only(hosts):
    hosts.set(1, rate="8mbit")

    def within_a_host():
        names, within, between = output(hosts, 4, NEIGHBOURS).split("; ")
        assert names == str([("host0", 2)] * 2 + [("host1", 2)] * 2)
        assert float(between) > 0.7
        return float(within)

    try:
        # A busy machine may take long within a host as well, but not each time.
        assert any(within_a_host() < 0.35 for _ in range(9))
    finally:
        hosts.set(1, rate="1gbit")


SPIN = """
while True:
    pass
"""


def share(pid):
    """Returns how many cores a process uses."""

    def seconds():
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, start = seconds(), time.perf_counter()
    time.sleep(WINDOW)
    return (seconds() - before) / (time.perf_counter() - start)


def pid_of(hosts, host, word):
    """Waits for a process on a host that has a word in its command."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        for pid in hosts.status()[host].processes:
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    words = file.read().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # A helper of the launcher has ended meanwhile.
            if words[0] == sys.executable and word in words:
                return pid
        time.sleep(0.02)
    raise AssertionError(f"{word} is not on host {host}")


def test_a_share_changes_while_a_program_runs(hosts):
    argv, env = hosts.launch(1, [sys.executable, "-c", SPIN, "spin"], hosts=[0])
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL) as process:
        try:
            pid = pid_of(hosts, 0, "spin")
            half = share(pid)
            # Less than a busy machine gives any process.
            hosts.set(0, cpus=0.05)
            little = share(pid)
            hosts.set(0, cpus=0.5)
            # A busy machine may give it less than its share, but not each time.
            has_more = any(share(pid) > 1.5 * little for _ in range(9))
        finally:
            process.terminate()
    assert half < 0.6 and little < 0.1 and has_more


CONNECT = """
import socket
try:
    socket.create_connection(("10.77.0.2", 9), 0.5)
except OSError as error:
    print(type(error).__name__)
"""


def test_a_host_is_cut_off_and_joined_again(hosts):
    found = []
    for is_up in (False, True):
        hosts.link(1, is_up)
        assert [host.is_up for host in hosts.status()] == [True, is_up]
        found.append(output(hosts, 1, CONNECT, where=[0]).strip())
    assert found == [socket_timeout(), "ConnectionRefusedError"]


def socket_timeout():
    """Returns what this Python calls it: `socket.timeout` until 3.9."""
    return "timeout" if sys.version_info < (3, 10) else "TimeoutError"


FILL = """
held = []
for _ in range(100):
    held.append(bytearray(b"x") * 2**23)
"""


def test_a_program_that_takes_too_much_memory_is_killed(hosts):
    command = [sys.executable, "-c", FILL]
    done = hosts.run(1, command, hosts=[0], timeout=DEADLINE, stdout=subprocess.DEVNULL)
    assert done.returncode != 0
    assert 200 * 2**20 < hosts.peak_memory(0) <= 256 * 2**20
    assert hosts.peak_memory(1) < 200 * 2**20


def test_a_program_that_takes_too_long_is_ended(hosts):
    with pytest.raises(subprocess.TimeoutExpired):
        hosts.run(2, [sys.executable, "-c", SPIN], timeout=1)
    # To die, a process needs some of its host's share.
    deadline = time.monotonic() + DEADLINE
    while any(host.processes for host in hosts.status()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_kernel_says_what_hosts_have(hosts):
    hosts.set(1, cpus=0.004, rate="2.5mbit")
    try:
        first, second = hosts.status()
        assert (first.cpus, first.rate, first.memory) == (0.5, "1gbit", 256 * 2**20)
        assert (second.cpus, second.rate) == (pytest.approx(0.004), "2.5mbit")
    finally:
        hosts.set(1, cpus=0.4, rate="1gbit")


def test_clusters_stand_side_by_side(hosts):
    with cluster([0.1], overcommit=True) as others:
        assert output(others, 1, EXCHANGE) == "['10.77.0.1'] []\n"
        (other,) = others.status()
        assert (other.rate, other.memory) == (None, None)
        assert len(hosts.status()) == 2
        with (
            pytest.raises(ClusterError, match="is up already"),
            cluster([0.1], name=others.name, overcommit=True),
        ):
            pass
    with pytest.raises(ClusterError, match="no cluster 'other' is up"):
        Cluster("other")


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"cpus": [1000.0]},
            "1000 cores beside hosts with .* are too much.*until the other hosts are",
        ),
        ({"cpus": []}, "a cluster has 1 to 200 hosts"),
        ({"cpus": [0.0]}, "a share of 0 cores is less than 0.001"),
        ({"cpus": [0.1], "rate": "fast"}, "'fast' is no rate, such as '100mbit'"),
        ({"cpus": [0.1], "rate": "0mbit"}, "'0mbit' is no rate, such as '100mbit'"),
        (
            {"cpus": [0.1], "memory": "1T"},
            "'1T' is not a size of memory, such as '512M'",
        ),
        ({"cpus": [0.1], "rate": ["1gbit"] * 2}, "2 rates for 1 hosts"),
        ({"cpus": [0.1], "name": "My hosts"}, "'My hosts' is no name"),
    ],
)
def test_what_cannot_be_is_refused(hosts, options, message):
    with pytest.raises((ClusterError, ValueError), match=message), cluster(**options):
        pass


def test_hosts_that_are_not_there_are_refused(hosts):
    for call in (
        lambda: hosts.set(2, cpus=0.1),
        lambda: hosts.link(-1, False),
        lambda: hosts.launch(1, ["true"], [0, 2]),
    ):
        with pytest.raises(ClusterError, match="there is no host"):
            call()


def test_hosts_may_differ():
    found = as_hosts([1.0, 0.5], rate=["1gbit", "unlimited"], memory="1G")
    assert found == [(1.0, "1gbit", "1G"), (0.5, None, "1G")]
