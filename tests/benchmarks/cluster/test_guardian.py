"""Nothing of a cluster is left behind, whoever is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.cluster import cluster, construction, control_groups, network, registry
from tests.support.matrix import matrix
from tests.support.processes import ROOT

DEADLINE = 15
OWNER = """
import sys
from benchmarks.cluster import cluster
with cluster([0.2, 0.2], "1gbit", name=sys.argv[1], overcommit=True) as hosts:
    hosts.run(2, [sys.executable, "-c", "import time; time.sleep(60)"], timeout=60)
"""


def wait_for(condition):
    """Waits until something is true, and returns it."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def left_of(name):
    """Returns what is there of a cluster."""
    names = construction.member(name, "")
    found = [*control_groups.groups_of(names), *network.namespaces_of(names)]
    return found + [path for path in [registry.file_of(name)] if path.exists()]


@pytest.fixture
def owner(allowed, request):
    """A process with a program on its hosts, and the name of its cluster."""
    name = f"test_{os.getpid()}_{request.node.name.partition('[')[0][-8:]}"
    command = [sys.executable, "-c", OWNER, name]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield process, name
    finally:
        process.kill()
        process.wait()


def processes(name):
    """Returns the processes of a cluster once all run: its guardian is the first."""
    entry = registry.read(name)
    groups = construction.groups_of_hosts(name)
    running = [control_groups.processes(group) for group in groups]
    if entry is None or len(running) != 2 or min(map(len, running)) < 2:
        return []
    switch = control_groups.processes(construction.member(name, network.SWITCH))
    return [entry.guardian, *switch, *running[0], *running[1]]


def runs(pid):
    """Says whether a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *matrix(signal.SIGTERM, signal.SIGINT)]
)
def test_the_owner_is_killed(owner, number):
    process, name = owner
    pids = wait_for(lambda: processes(name))
    process.send_signal(number)
    wait_for(lambda: not left_of(name))
    wait_for(lambda: not any(map(runs, pids)))


def test_the_guardian_is_killed_and_then_the_owner(owner):
    process, name = owner
    pids = wait_for(lambda: processes(name))
    os.kill(pids[0], signal.SIGKILL)
    process.kill()
    process.wait()
    assert left_of(name)
    # The next one cleans up.
    with cluster([0.1], overcommit=True):
        assert not left_of(name)
    wait_for(lambda: not any(map(runs, pids)))


def test_the_guardian_is_killed_before_the_end(allowed):
    with cluster([0.1], overcommit=True) as hosts:
        assert left_of(hosts.name)
        os.kill(registry.read(hosts.name).guardian, signal.SIGKILL)
    assert not left_of(hosts.name)


def test_a_cluster_that_cannot_be_made_leaves_nothing(allowed):
    name = f"test_{os.getpid()}_half"
    # A control group in the way of the second host.
    blocked = construction.member(name, 1)
    control_groups.make(blocked)
    try:
        with (
            pytest.raises(RuntimeError, match="File exists"),
            cluster([0.1, 0.1], name=name, overcommit=True),
        ):
            pass
        assert not left_of(name)
    finally:
        control_groups.remove(blocked)
