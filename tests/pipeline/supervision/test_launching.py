import contextlib
import os
from pathlib import Path

import pytest

from pipeline.supervision import launching
from pipeline.supervision.hosts import Host
from pipeline.supervision.launching import Job, Placement

TWO = Placement((Host("a", 2), Host("b", 1)))


@pytest.fixture
def launcher(tmp_path):
    """A launcher that prints a version, waits for one host and fails on another."""

    def make(name, version):
        path = tmp_path / name
        path.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = --version ]; then echo "{version}"; exit; fi\n'
            'case "$2" in down:*) exit 1;; silent:*) exec sleep 60;; esac\n'
            'shift 4; exec "$@"\n'
        )
        path.chmod(0o755)
        return str(path)

    return make


def test_each_launcher_gets_hosts_in_its_own_way(launcher):
    hydra = launcher("mpiexec.hydra", "HYDRA build details")
    open_mpi = launcher("mpirun", "mpirun (Open MPI) 5.0.3")
    for words, command in [
        ([hydra], [hydra, "-hosts", "a:2,b:1", "-n", "3"]),
        ([open_mpi, "-x"], [open_mpi, "-x", "-host", "a:2,b:1", "-n", "3"]),
        (
            ["srun"],
            ["srun", "--nodes=2", "--distribution=arbitrary", "--nodelist=a,a,b"]
            + ["-n", "3"],
        ),
        (["mine", "--on={hosts}"], ["mine", "--on=a:2,b:1", "-n", "3"]),
        (["mine", "{names}"], ["mine", "a,b", "-n", "3"]),
    ]:
        assert Job(words, ["program"]).command(TWO) == [*command, "program"]
    free = Placement((Host("", 2),))
    assert Job(["mine"], ["program"]).command(free) == ["mine", "-n", "2", "program"]


def test_an_unknown_launcher_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match="'mine' is not known.*write {hosts}"):
        Job(["mine"], []).command(TWO)


def children():
    """The processes that this one has started, and that have not been waited for."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name in brackets: the state, and the number of the parent.
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(path.parent.name)
    return found


def test_hosts_that_fail_or_do_not_answer_are_out_of_reach(launcher, monkeypatch):
    monkeypatch.setattr(launching, "SECONDS_TO_ANSWER", 3.0)
    job, before = Job([launcher("mpiexec", "HYDRA")], ["program"]), children()
    assert job.answering(["up", "down", "silent"]) == {"up"}
    # The silent one's process has ended.
    assert children() <= before
    assert Job(["/no/launcher/{hosts}"], []).answering(["up"]) == set()


def test_ranks_have_hosts():
    assert [TWO.host_of(rank) for rank in (0, 1, 2, 3)] == ["a", "a", "b", "b"]
    assert str(TWO) == "3 ranks (a:2, b:1)"
    assert str(Placement((Host("", 1),))) == "1 rank"
