"""Groups have the limits that a cluster gives them, in either version.

A real kernel limits by one version only. So the files of both are tested on folders
that look like theirs. A last test is on a real hierarchy of version 2, without limits.
"""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.cluster import control_groups
from benchmarks.cluster.control_groups_v2 import Version2

#: Files of a new group, by the folder of its hierarchy.
NEW = {
    1: {
        "cpu": {
            "cgroup.procs": "",
            "cpu.cfs_period_us": "100000\n",
            "cpu.cfs_quota_us": "-1\n",
        },
        "memory": {
            "cgroup.procs": "",
            "memory.limit_in_bytes": "9223372036854771712\n",
            "memory.max_usage_in_bytes": "4096\n",
        },
    },
    2: {
        "": {
            "cgroup.procs": "",
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
            "memory.peak": "4096\n",
        }
    },
}
GROUP = "emulated-test-0"
REAL_V2 = Path("/sys/fs/cgroup/unified")


@pytest.fixture(params=[1, 2])
def version(request, tmp_path, monkeypatch):
    """Has a folder that looks like the control groups of a version."""
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    for kind in NEW[request.param]:
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / "cgroup.procs").write_text("1\n")
    if request.param == 2:
        (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    return request.param


def make_group(version):
    """Makes a group, and the files that the kernel would put there."""
    control_groups.make(GROUP)
    for kind, files in NEW[version].items():
        for name, content in files.items():
            (control_groups.ROOT / kind / GROUP / name).write_text(content)


def content(*path):
    return control_groups.ROOT.joinpath(*path[:-1], GROUP, path[-1]).read_text()


def test_a_group_has_no_limits_until_it_is_given_some(version):
    assert control_groups.missing() is None
    make_group(version)
    assert control_groups.cpus_of(GROUP) == float("inf")
    assert control_groups.memory_of(GROUP) is None
    control_groups.set_cpus(GROUP, 0.4)
    control_groups.set_memory(GROUP, "1.5M")
    assert control_groups.cpus_of(GROUP) == pytest.approx(0.4)
    assert control_groups.memory_of(GROUP) == 3 * 2**19
    assert control_groups.peak_memory(GROUP) == 4096


@pytest.mark.parametrize(
    "cpus, quota, period", [(0.4, 4000, 10_000), (2.5, 25_000, 10_000)]
)
def test_what_is_written(version, cpus, quota, period):
    make_group(version)
    control_groups.set_cpus(GROUP, cpus)
    control_groups.set_memory(GROUP, "512M")
    if version == 1:
        assert content("cpu", "cpu.cfs_quota_us") == str(quota)
        assert content("cpu", "cpu.cfs_period_us") == str(period)
        assert content("memory", "memory.limit_in_bytes") == str(2**29)
    else:
        assert content("cpu.max") == f"{quota} {period}"
        assert content("memory.max") == str(2**29)


@pytest.mark.parametrize("cpus", [control_groups.LEAST_CPUS, 0.004, 0.0999])
def test_small_shares_keep_the_least_quota(version, cpus):
    make_group(version)
    control_groups.set_cpus(GROUP, cpus)
    quota, period = control_groups.version().quota_of(GROUP)
    assert quota >= control_groups.LEAST_QUOTA
    assert period <= control_groups.MOST_PERIOD
    assert control_groups.cpus_of(GROUP) == pytest.approx(cpus, rel=1e-3)


def test_processes_are_those_of_every_hierarchy(version):
    make_group(version)
    for i, folder in enumerate(control_groups.version().folders(GROUP)):
        (folder / "cgroup.procs").write_text(f"7\n{30 + i}\n")
    assert control_groups.processes(GROUP) == [7, 30, 31][: 4 - version]
    assert control_groups.processes("emulated-other-0") == []


def test_groups_are_found_by_how_their_names_begin(version):
    for name in ("emulated-a-1", "emulated-a-0", "emulated-b-0"):
        control_groups.make(name)
    assert control_groups.groups_of("emulated-a-") == ["emulated-a-0", "emulated-a-1"]
    for name in ("emulated-a-0", "emulated-a-0", "emulated-b-0"):
        control_groups.remove(name)
    assert control_groups.groups_of("emulated-") == ["emulated-a-1"]


@pytest.fixture
def second(tmp_path):
    """Has a folder that looks like the group of a container, of version 2."""
    for name, words in {
        "cgroup.controllers": "cpu memory",
        "cgroup.subtree_control": "",
        "cgroup.type": "domain",
        "cgroup.procs": "1\n20\n",
    }.items():
        (tmp_path / name).write_text(f"{words}\n")
    return tmp_path


def test_new_groups_of_version_2_are_given_limits(second):
    (second / "cgroup.procs").write_text("")
    assert Version2(second).missing() is None
    Version2(second).prepare()
    assert (second / "cgroup.subtree_control").read_text() == "+cpu +memory"
    # The kernel writes the names that are in force.
    (second / "cgroup.subtree_control").write_text("cpu memory\n")
    Version2(second).prepare()
    assert (second / "cgroup.subtree_control").read_text() == "cpu memory\n"


def test_a_group_with_processes_cannot_limit_others(second):
    reason = Version2(second).missing()
    assert "has processes of its own" in reason and f"mkdir {second}/init" in reason
    # The root of the machine can.
    (second / "cgroup.type").unlink()
    assert Version2(second).missing() is None


def test_a_group_whose_groups_have_limits_already_has_no_processes_to_move(second):
    (second / "cgroup.subtree_control").write_text("memory cpu\n")
    assert Version2(second).missing() is None


def test_the_most_memory_is_not_counted_by_older_kernels(second):
    with pytest.raises(RuntimeError, match="memory.peak: with .* since Linux 5.19"):
        Version2(second).peak_memory(GROUP)


def test_a_program_enters_the_groups_that_it_is_told(version, tmp_path):
    """Runs the script that starts programs, without a namespace of the switch."""
    switch = "emulated-test-switch"
    control_groups.make(switch)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nsenter").write_text("#!/bin/sh\necho $$ $*\n")
    (tools / "nsenter").chmod(0o755)
    parents = control_groups.version().parents
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "EMULATED_CLUSTER": "emulated-test",
        "EMULATED_GROUPS": " ".join(map(str, parents)),
    }
    script = Path(control_groups.__file__).with_name("enter.sh")
    done = subprocess.run(
        [script, "switch", "true"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pid, *words = done.stdout.split()
    assert words == [f"--net=/run/netns/{switch}", "true"]
    for parent in parents:
        assert (parent / switch / "cgroup.procs").read_text() == f"{pid}\n"


@pytest.mark.skipif(
    not os.access(REAL_V2 / "cgroup.procs", os.W_OK),
    reason=f"it needs root, and a hierarchy of version 2 in {REAL_V2}",
)
def test_a_real_group_of_version_2_holds_processes_that_are_killed(monkeypatch):
    """The kernel's hierarchy, for which this machine has no limits."""
    monkeypatch.setattr(control_groups, "ROOT", REAL_V2)
    monkeypatch.setattr(Version2, "prepare", lambda self: None)
    assert "have no limits of" in control_groups.missing()
    group = f"emulated-test-{os.getpid()}"
    control_groups.make(group)
    try:
        (folder,) = control_groups.version().folders(group)
        with subprocess.Popen(["sleep", "60"]) as process:
            (folder / "cgroup.procs").write_text(str(process.pid))
            assert control_groups.processes(group) == [process.pid]
            assert control_groups.groups_of(group) == [group]
            control_groups.kill([group])
            assert process.wait(10) == -9
        assert control_groups.processes(group) == []
    finally:
        control_groups.remove(group)
    assert not folder.exists()
