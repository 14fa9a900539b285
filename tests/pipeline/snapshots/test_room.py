"""Room in memory for a copy, by what the system says."""

import resource

import pytest

from pipeline.snapshots.room import Claim, claims, refusal

MIB = 1 << 20
STATUS = "Name:\tpython\nPid:\t7\nVmPeak:\t 4096 kB\nVmSize:\t 3072 kB\n"
STATUS += "VmHWM:\t 2048 kB\nVmRSS:\t 1024 kB\n"


@pytest.fixture
def system(tmp_path):
    """Makes files as the system has them; returns where they are."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "proc", tmp_path / "groups"

    write({"proc/self/status": STATUS, "proc/meminfo": "MemAvailable: 8192 kB\n"})
    return write


def test_a_machine(system):
    """What a step had at its peak is taken as well."""
    (found,) = claims(5 * MIB, *system({})).values()
    assert found == Claim("the machine", 6 * MIB, 8 * MIB)


@pytest.mark.parametrize("here", ["/job/step", "/of/its/host"])
def test_control_groups(system, here):
    files = {
        "proc/self/cgroup": f"0::{here}\n",
        "groups/job/memory.max": f"{7 * MIB}\n",
        "groups/job/memory.current": f"{3 * MIB}\n",
        "groups/job/memory.stat": f"anon 5\ninactive_file {MIB}\n",
        "groups/job/step/memory.max": "max\n",
        "groups/job/step/memory.current": "5\n",
        "groups/memory.max": f"{9 * MIB}\n",
        "groups/memory.current": f"{5 * MIB}\n",
    }
    found = {claim.where: claim.left for claim in claims(0, *system(files)).values()}
    groups = {
        where.split("/groups")[1]: found[where] for where in found if "/" in where
    }
    above = {"": 4 * MIB}
    assert groups == ({"/job": 5 * MIB, **above} if here == "/job/step" else above)


def test_control_groups_of_version_1(system):
    files = {
        "proc/self/cgroup": "5:cpu:/a\n4:hugetlb,memory:/job\n1:name=systemd:/\n",
        "groups/memory/job/memory.limit_in_bytes": f"{4 * MIB}",
        "groups/memory/job/memory.usage_in_bytes": f"{3 * MIB}",
        "groups/memory/job/memory.stat": f"total_inactive_file {2 * MIB}",
        "groups/memory/memory.limit_in_bytes": "9223372036854771712",
        "groups/memory/memory.usage_in_bytes": "1",
    }
    found = [each for each in claims(0, *system(files)).values() if "/" in each.where]
    assert [claim.left for claim in found] == [3 * MIB]


def test_a_limit_of_addresses(system, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (9 * MIB, 9 * MIB))
    found = [each for each in claims(MIB, *system({})).values() if "ulimit" in each[0]]
    assert [(claim.taken, claim.left) for claim in found] == [(2 * MIB, 6 * MIB)]


def test_where_the_system_does_not_say(tmp_path):
    assert claims(MIB, tmp_path, tmp_path) == {}


def test_on_this_machine():
    assert refusal([claims(MIB)] * 2) is None
    assert refusal([claims(1 << 60)]) is not None or not claims(MIB)


def test_those_who_share_a_place_take_together():
    def share(place, taken, left=100 * MIB):
        return {place: Claim("the machine", taken * MIB, left)}

    assert refusal([share("a", 60), share("b", 60), {}]) is None
    words = refusal([{}, share("a", 60), share("b", 9), share("a", 60, 90 * MIB)])
    assert words.startswith(
        "rank 1: the copies take up to 120 MiB, and 90 MiB are left"
    )
    assert words.endswith("of the machine")
