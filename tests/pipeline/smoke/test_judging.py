import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.smoke.facts import LinkFacts, RankFacts
from pipeline.smoke.judging import judge

GBIT = 1e9 / 8
VERSIONS = {"divisible": "0.1.0", "Python": "3.11.7", "NumPy": "2.4.6", "MPI": "MPICH"}


def facts(rank, host, **changes):
    """The facts of a rank on a good host."""
    usual = {
        "versions": VERSIONS,
        "variables": {"OMP_NUM_THREADS": "1"},
        "threads": 1,
        "cores": (rank,),
        "chainer_seconds": 2e-3,
        "kernel_seconds": 1e-3,
        "cpu_share": 1.0,
        "copied_bytes": 8e9,
        "memory": {f"memory of {host}": ("the machine", 8 * 2**30)},
        "shared_memory": 2**30,
        "disk_read": 1e9,
        "disk_write": 5e8,
    }
    return RankFacts(rank, host, **{**usual, **changes})


def cluster(n=4, **changes):
    """A rank on each of some hosts, one of which is changed: the third."""
    hosts = [f"host{i}" for i in range(n)]
    return [facts(i, h, **(changes if i == 2 else {})) for i, h in enumerate(hosts)]


def ring(n=4, slow=(), rate=GBIT / 10):
    """Links in a ring, of which some are slow."""
    pairs = [(i, (i + 1) % n) for i in range(n)]
    return [
        LinkFacts(*pair, 1e-4, rate if number in slow else GBIT)
        for number, pair in enumerate(pairs)
    ]


def faults(verdicts):
    return {verdict.host: verdict.faults for verdict in verdicts if verdict.faults}


def only_fault(verdicts, host="host2"):
    (found,) = faults(verdicts).items()
    assert found[0] == host
    assert len(found[1]) == 1
    return found[1][0]


def test_good_hosts_pass_without_a_word():
    verdicts = judge(cluster(), ring())
    assert [verdict.host for verdict in verdicts] == [f"host{i}" for i in range(4)]
    assert all(verdict.passed for verdict in verdicts)
    assert not any(verdict.advice for verdict in verdicts)


@pytest.mark.parametrize("n", [3, 4, 5, 16])
def test_a_host_with_a_third_of_the_cpu(n):
    slow = cluster(
        n, kernel_seconds=3e-3, chainer_seconds=6e-3, cpu_share=1 / 3, copied_bytes=3e9
    )
    own = [f for f in faults(judge(slow, ring(n)))["host2"] if "computes" in f][0]
    assert "computes at 0.33 of the others' speed" in own
    assert "a thread gets 0.33 of a core" in own
    assert "quota" in own
    assert [*faults(judge(slow, ring(n)))] == ["host2"]


def test_of_two_hosts_the_slower_one():
    hosts = [
        facts(0, "a"),
        facts(1, "b", kernel_seconds=3e-3, chainer_seconds=6e-3, cpu_share=1 / 3),
    ]
    assert "computes at 0.33" in only_fault(judge(hosts), "b")
    assert "computes at 0.33" in only_fault(judge(hosts[::-1]), "b")


def test_a_host_with_slow_cores_is_not_told_to_end_programs():
    found = only_fault(judge(cluster(kernel_seconds=2e-3, chainer_seconds=4e-3)))
    assert "computes at 0.50" in found
    assert "its cores are slower" in found
    assert "governor" in found
    assert "End other programs" not in found


def test_where_all_have_as_little_cpu_it_is_advice():
    hosts = [facts(i, f"host{i}", cpu_share=0.4) for i in range(4)]
    verdicts = judge(hosts)
    assert not faults(verdicts)
    assert all("0.40 of a core, and 0.40 elsewhere" in v.advice[0] for v in verdicts)
    # A host alone has nothing to be compared with.
    assert "a thread gets 0.40 of a core. End" in only_fault(
        judge([facts(0, "a", cpu_share=0.4)]), "a"
    )


@pytest.mark.parametrize("n", [3, 4, 6])
def test_a_host_with_a_link_of_100_mbit_among_gigabits(n):
    # Links 1 and 2 of the ring are those of host2.
    found = only_fault(judge(cluster(n), ring(n, slow=(1, 2))))
    assert "its links carry 100 Mbit/s, 100 Mbit/s, and others 1000 Mbit/s" in found
    assert "network card" in found


def test_a_slow_link_between_hosts_with_fast_ones_is_told_to_both():
    found = faults(judge(cluster(), ring(slow=(1,))))
    assert [*found] == ["host1", "host2"]
    assert "its link to host2 carries 100 Mbit/s" in found["host1"][0]
    assert "its link to host1 carries 100 Mbit/s" in found["host2"][0]


def test_a_link_that_is_slow_for_want_of_cpu_time_is_not_told():
    starving = cluster(kernel_seconds=3e-3, cpu_share=0.3)
    assert [*faults(judge(starving, ring(slow=(1,))))] == ["host2"]
    assert "link" not in str(faults(judge(starving, ring(slow=(1,)))))


def test_slow_links_within_a_host_are_not_compared_with_those_between():
    ranks = [facts(i, "ab"[i // 2]) for i in range(4)]
    links = [
        LinkFacts(0, 1, 1e-6, 100 * GBIT),
        LinkFacts(1, 2, 1e-4, GBIT),
        LinkFacts(2, 3, 1e-6, 100 * GBIT),
        LinkFacts(3, 0, 1e-4, GBIT),
    ]
    assert not faults(judge(ranks, links))


def test_a_host_with_200_mb_free():
    memory = {
        "all": ("the machine", 8 * 2**30),
        "group": ("the control group /g", 200 * 2**20),
    }
    found = only_fault(judge(cluster(memory=memory)))
    assert "200.0 MiB of memory are free for 1 rank (the control group /g)" in found
    assert "fewer ranks" in found


def test_ranks_share_the_memory_of_their_host():
    place = {"memory of a": ("the machine", 900 * 2**20)}
    one = judge([facts(0, "a", memory=place)])
    two = judge([facts(i, "a", memory=place) for i in range(2)])
    assert one[0].passed
    assert "free for 2 ranks" in only_fault(two, "a")


def test_a_host_with_far_less_memory_than_the_others():
    memory = {"its": ("the machine", 2**30)}
    found = only_fault(judge(cluster(memory=memory)))
    assert "1.0 GiB of memory are free for a rank, and 8.0 GiB elsewhere" in found


def test_wrong_threads():
    wrong = {"threads": 4, "variables": {"OMP_NUM_THREADS": "4"}, "cores": (0, 1)}
    found = only_fault(judge(cluster(**wrong)))
    assert "4 threads of 1 rank share 2 cores: OMP_NUM_THREADS is 4" in found
    assert "Set OMP_NUM_THREADS=2" in found
    # Two ranks of a host have half of its cores each.
    ranks = [
        facts(i, "a", threads=2, variables={"OMP_NUM_THREADS": ""}) for i in (0, 1)
    ]
    found = only_fault(judge(ranks), "a")
    assert "4 threads of 2 ranks share 2 cores: OMP_NUM_THREADS is not set" in found
    assert "Set OMP_NUM_THREADS=1" in found


def test_a_host_slow_by_its_threads_is_told_to_set_them():
    wrong = {"threads": 4, "variables": {"OMP_NUM_THREADS": "4"}, "cores": (0, 1)}
    slow = {"kernel_seconds": 4e-3, "cpu_share": 0.2}
    assert "4 threads of 1 rank" in only_fault(judge(cluster(**wrong, **slow)))


def test_a_variable_that_differs_from_the_others():
    hosts = cluster(variables={"OMP_NUM_THREADS": "2"}, threads=2)
    hosts = [dataclasses.replace(each, cores=(0, 1)) for each in hosts]
    found = only_fault(judge(hosts))
    assert "OMP_NUM_THREADS is 2, and 1 on other ranks. Set it alike" in found
    hosts = cluster(variables={"OMP_NUM_THREADS": ""})
    assert "OMP_NUM_THREADS is not set, and 1 on" in only_fault(judge(hosts))


def test_a_host_with_more_cores_has_more_threads():
    changed = {"variables": {"OMP_NUM_THREADS": "2"}, "threads": 2, "cores": (0, 1)}
    assert not faults(judge(cluster(**changed)))
    # A number that two cores do not need.
    hosts = cluster(**{**changed, "variables": {"OMP_NUM_THREADS": "3"}})
    assert "OMP_NUM_THREADS is 3, and 1 on other ranks" in only_fault(judge(hosts))


def test_more_ranks_than_cores():
    ranks = [facts(i, "a", cores=(0, 1)) for i in range(3)]
    found = only_fault(judge(ranks), "a")
    assert "3 ranks share 2 cores. Start 2 ranks there" in found
    bound = [facts(i, "a", cores=(i,)) for i in range(3)]
    assert not faults(judge(bound))
    assert "share 1 core" in only_fault(
        judge([facts(i, "a", cores=(0,)) for i in (0, 1)]), "a"
    )


def test_idle_cores_are_advice():
    verdicts = judge(cluster(cores=tuple(range(16))))
    assert not faults(verdicts)
    (advice,) = verdicts[2].advice
    assert "15 of 16 cores have no thread of products" in advice
    assert "OMP_NUM_THREADS=16" in advice


@pytest.mark.parametrize("name", [*VERSIONS])
def test_a_version_that_differs(name):
    found = only_fault(judge(cluster(versions={**VERSIONS, name: "another"})))
    assert found == (
        f"{name} is another, and {VERSIONS[name]} on other ranks. Install the same on"
        f" all hosts"
    )


def test_a_package_that_is_missing():
    versions = {k: v for k, v in VERSIONS.items() if k != "NumPy"}
    found = only_fault(judge(cluster(versions=versions)))
    assert "NumPy is missing, and 2.4.6 on other ranks" in found


@pytest.mark.parametrize(
    "change, words",
    [
        ({"copied_bytes": 2e9}, "copies 1.9 GiB/s in memory, and 7.5 GiB/s elsewhere"),
        ({"disk_write": 5e7}, "its disk writes 47.7 MiB/s, and 476.8 MiB/s elsewhere"),
        ({"disk_read": 1e8}, "its disk reads 95.4 MiB/s"),
        ({"disk_error": "no room"}, "the disk cannot be used: no room. Make room"),
    ],
)
def test_slow_memory_and_disks(change, words):
    assert words in only_fault(judge(cluster(**change)))


def test_disks_that_vary_are_advice():
    verdicts = judge(cluster(disk_read=3e8))
    assert not faults(verdicts)
    assert "its disk reads 286.1 MiB/s, and 953.7 MiB/s elsewhere" in str(
        verdicts[2].advice
    )


def test_little_shared_memory_counts_where_ranks_share_a_host():
    alone = judge([facts(0, "a", shared_memory=2**20)])
    assert alone[0].passed
    found = only_fault(
        judge([facts(i, "a", shared_memory=2**20) for i in range(2)]), "a"
    )
    assert "/dev/shm has 1.0 MiB free, and messages of 2 ranks need 64.0 MiB" in found
    assert "--shm-size" in found


def test_clocks_that_differ_are_advice():
    verdicts = judge(cluster(clock=-3.25))
    assert not faults(verdicts)
    assert "its clock is 3.2 s behind" in verdicts[2].advice[0]


def test_slow_kernels_are_advice():
    verdicts = judge([facts(0, "a", kernel_seconds=4e-3)])
    assert not faults(verdicts)
    assert "kernels take 2.0 times as long" in verdicts[0].advice[0]


def test_hosts_without_measurements_are_judged_by_versions_alone():
    ranks = [RankFacts(i, f"host{i}", VERSIONS) for i in range(3)]
    ranks[1] = dataclasses.replace(
        ranks[1], versions={**VERSIONS, "divisible": "0.0.9"}
    )
    assert "divisible is 0.0.9" in only_fault(judge(ranks), "host1")


@given(
    st.lists(st.floats(0.9, 1.1), min_size=1, max_size=12),
    st.floats(0.9, 1.1),
)
def test_hosts_that_hardly_differ_pass(factors, other):
    ranks = [
        facts(
            i,
            f"host{i}",
            kernel_seconds=1e-3 * factor,
            copied_bytes=8e9 * factor,
            disk_read=1e9 * factor,
            disk_write=5e8 * factor,
            cpu_share=min(1.0, factor),
        )
        for i, factor in enumerate(factors)
    ]
    n = len(ranks)
    links = [
        LinkFacts(i, (i + 1) % n, 1e-4, GBIT * (other if i % 2 else factors[i]))
        for i in range(n)
        if n > 1
    ]
    assert not faults(judge(ranks, links))
