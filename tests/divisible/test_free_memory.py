"""Memory that is left for a copy, by what the system says."""

import resource

import pytest

from divisible.free_memory import Claim, Peaks, claims, refusal

MIB = 1 << 20
STATUS = "Name:\tpython\nPid:\t7\nVmPeak:\t 4096 kB\nVmSize:\t 3072 kB\n"
STATUS += "VmHWM:\t 2048 kB\nVmRSS:\t 1024 kB\n"


@pytest.fixture
def system(tmp_path):
    """Makes files as the system has them; returns the arguments of `claims`."""

    peaks = Peaks()

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "proc", tmp_path / "groups", peaks

    write({"proc/self/status": STATUS, "proc/meminfo": "MemAvailable: 8192 kB\n"})
    return write


def test_a_machine(system):
    """The peak of a step counts as taken as well."""
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
    assert claims(MIB, tmp_path, tmp_path, Peaks()) == {}


def test_copies_before_do_not_count(system):
    """Peaks never go down; what a step takes may lie below that of a copy alone."""

    def taken(peak, now):
        status = f"VmHWM: {peak} kB\nVmRSS: {now} kB\n"
        place = system({"proc/self/status": status})
        (found,) = claims(200 * MIB, *place).values()
        return found.taken // MIB

    kib = 1024
    peaks = system({})[-1]
    assert taken(peak=130 * kib, now=100 * kib) == 230
    for _ in range(2):
        peaks.hold(200 * MIB)
        # The thread still has it, as that of another pipeline may.
        assert taken(peak=300 * kib, now=300 * kib) == 230
        peaks.free(200 * MIB)
        assert taken(peak=300 * kib, now=100 * kib) == 230
        # Steps have grown meanwhile, beside the copy or after it.
    assert taken(peak=350 * kib, now=100 * kib) == 250
    assert taken(peak=350 * kib, now=250 * kib) == 250


def test_nothing_that_the_system_says_is_an_error(system, tmp_path):
    place = system(
        {"proc/self/status": "\n:\nVmHWM: ² kB\n", "proc/self/cgroup": "\n:"}
    )
    (tmp_path / "proc/meminfo").write_bytes(b"MemAvailable: 8192 kB\nName: \xff\n")
    (found,) = claims(MIB, *place).values()
    assert (found.taken, found.left) == (MIB, 8 * MIB)


def test_on_this_machine():
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
