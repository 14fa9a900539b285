import os
import subprocess
import time

import pytest

from pipeline.smoke import launching
from pipeline.smoke.launching import run, silent_hosts
from tests.support.processes import LOAD

# A launcher that starts a program, unless its host is not well.
LAUNCHER = """#!/bin/bash
case "$1" in
  hangs) sleep 1000 ;;
  fails) echo; echo "ssh: no route to host fails"; exit 7 ;;
esac
exec "${@:2}"
"""


@pytest.fixture
def launcher(tmp_path):
    path = tmp_path / "launcher"
    path.write_text(LAUNCHER)
    path.chmod(0o755)
    return str(path)


def test_prints_and_returns_output_and_exit_code(launcher, capsys):
    command = [launcher, "a", "bash", "-c", "echo 2 hosts; exit 5"]
    assert run(command, 10 * LOAD) == (5, "2 hosts\n")
    assert capsys.readouterr().out == "2 hosts\n"


def test_ends_ranks_at_the_deadline(launcher, tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "_SECONDS_TO_END", 0.5)
    pid, begun = tmp_path / "pid", time.monotonic()
    # A rank that does not end when it is asked to.
    program = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"
    assert run([launcher, "a", "bash", "-c", program], 1.0).code is None
    assert time.monotonic() - begun < 20 * LOAD
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


class Impatient(subprocess.Popen):
    """Waits less long for the one host that never answers."""

    def communicate(self, input=None, timeout=None):
        return super().communicate(input, 0.2 if "hangs" in self.args else timeout)


def test_names_the_hosts_that_do_not_answer(launcher, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Impatient)
    hosts = ("a", "hangs", "fails", "b")
    commands = {host: [launcher, host, "true"] for host in hosts}
    assert silent_hosts(commands, 3.0 * LOAD) == {
        "hangs": f"it does not answer within {3 * LOAD} s",
        "fails": "exit code 7: ssh: no route to host fails",
    }


def test_a_launcher_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        run(["no-such-launcher"], 1.0)
