import os
import time

import pytest

from pipeline.smoke.launching import n_slots, on_hosts, run, silent_hosts
from tests.support.processes import LOAD

# A launcher that starts a program, unless its host is not well.
LAUNCHER = """#!/bin/bash
case "$2" in
  hangs) sleep 1000 ;;
  fails) echo; echo "ssh: no route to host fails"; exit 7 ;;
esac
exec "${@:5}"
"""


@pytest.fixture
def launcher(tmp_path):
    path = tmp_path / "launcher"
    path.write_text(LAUNCHER)
    path.chmod(0o755)
    return str(path)


def test_returns_the_exit_code(launcher):
    command = [launcher, *on_hosts(["a"]), "-n", "1", "bash", "-c", "exit 5"]
    assert run(command, 10 * LOAD) == 5


def test_ends_ranks_at_the_deadline(launcher, tmp_path):
    pid, begun = tmp_path / "pid", time.monotonic()
    # A rank that does not end when it is asked to.
    program = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"
    command = [launcher, *on_hosts(["a"]), "-n", "1", "bash", "-c", program]
    assert run(command, 1.0) is None
    assert time.monotonic() - begun < 20 * LOAD
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_names_the_hosts_that_do_not_answer(launcher):
    found = silent_hosts([launcher], ["a", "hangs:2", "fails", "b"], 3.0 * LOAD)
    assert found == {
        "hangs:2": f"it does not answer within {3 * LOAD} s",
        "fails": "exit code 7: ssh: no route to host fails",
    }


def test_a_launcher_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        run(["no-such-launcher"], 1.0)


@pytest.mark.parametrize("hosts", [["a:x"], ["a", "b:0"], ["a:-1"]])
def test_refuses_slots_that_are_no_number(hosts):
    with pytest.raises(ValueError, match="write HOST, or HOST:RANKS"):
        n_slots(hosts)
