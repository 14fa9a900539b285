"""The command ``python -m benchmarks.cluster``."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

NAME = f"test_{os.getpid()}"


def call(*words):
    """Runs the command and returns its status and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cluster", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


@pytest.fixture
def up(allowed):
    """Hosts that a command brought up."""
    # Hosts of other tests may be up at the same time.
    words = ["--cpus", "0.2,0.1", "--rate", "1gbit", "--memory", "512M", "--overcommit"]
    found = call("up", "--name", NAME, "--while", str(os.getpid()), *words)
    yield found
    code, text = call("down", "--name", NAME)
    assert code == 0, text
    assert NAME not in call("status")[1]


def test_hosts_by_command(up):
    assert up == (0, "2 hosts are up\n")
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--name", "-n"]
    code, text = call("run", "--name", NAME, "-n", "1", "--hosts", "1", "--", *program)
    assert (code, text) == (0, "['--name', '-n']\n")
    for words in (
        ["set", "0", "--cpus", "0.05", "--rate", "100mbit"],
        ["link", "1", "--down"],
    ):
        assert call(*words, "--name", NAME) == (0, "")
    status = call("status")[1]
    assert f"{NAME}, until the end of process {os.getpid()}:" in status
    assert "0.05 cores  memory 512 MiB  link 100mbit  0 processes" in status
    assert "0.1 cores  memory 512 MiB  link 1gbit, cut  0 processes" in status
    code, text = call("up", "--name", NAME, "--cpus", "0.1", "--overcommit")
    assert code == 1 and f"a cluster '{NAME}' is up already" in text


@pytest.mark.parametrize("command", [["down"], ["run", "-n", "1", "true"]])
def test_without_a_cluster(command):
    code, text = call(*command, "--name", "nobody")
    assert (code, text) == (1, "Error: no cluster 'nobody' is up\n")
