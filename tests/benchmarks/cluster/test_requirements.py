"""What a machine lacks is said."""

import os
import shutil
import subprocess

import pytest

from benchmarks.cluster import cluster, control_groups, network, requirements
from benchmarks.cluster.construction import ClusterError


def test_without_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert requirements.missing() == "it needs root on Linux"
    words = "no hosts can be emulated here: it needs root on Linux"
    with pytest.raises(ClusterError, match=words), cluster([0.1]):
        pass


def as_root(monkeypatch, groups):
    """Makes this machine look as if all was there but control groups."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(control_groups, "ROOT", groups)


def test_without_a_tool(monkeypatch, tmp_path):
    as_root(monkeypatch, tmp_path)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert requirements.missing() == "there is no tc; install iproute2"


def test_without_control_groups(monkeypatch, tmp_path):
    as_root(monkeypatch, tmp_path)
    assert "no control groups (version 1) in" in requirements.missing()
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")
    assert "(version 2) in" in requirements.missing()
    assert "have no limits of memory" in requirements.missing()


@pytest.mark.parametrize(
    "failing, words",
    [
        ("unshare", "the network cannot be made: not permitted"),
        ("mpiexec", "is not MPICH's"),
    ],
)
def test_what_is_tried_out(monkeypatch, tmp_path, failing, words):
    as_root(monkeypatch, tmp_path)
    for folder in control_groups.version().parents:
        folder.mkdir()
        (folder / "cgroup.procs").touch()

    def run(command, **options):
        fails = failing in command[0]
        return subprocess.CompletedProcess(
            command, int(fails), "" if fails else "HYDRA build details", "not permitted"
        )

    monkeypatch.setattr(subprocess, "run", run)
    assert words in requirements.missing()


@pytest.mark.parametrize(
    "rate, bytes_per_second",
    [("1gbit", 125e6), ("100mbit", 12.5e6), ("2.5kbit", 312.5), (None, float("inf"))],
)
def test_rates_are_in_bits(rate, bytes_per_second):
    assert network.bandwidth(rate) == bytes_per_second


@pytest.mark.parametrize(
    "rate, text",
    [("1gbit", "1 Gbit/s"), ("100mbit", "100 Mbit/s"), ("2.5kbit", "2.5 kbit/s")],
)
def test_rates_are_written_as_people_do(rate, text):
    assert network.spoken_rate(rate) == text


@pytest.mark.parametrize("memory, size", [("100", 100), ("1.5K", 1536), ("1G", 2**30)])
def test_sizes_of_memory(memory, size):
    assert control_groups.n_bytes(memory) == size
