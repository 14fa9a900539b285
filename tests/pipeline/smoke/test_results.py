import json

import numpy as np

from divisible import Machine
from pipeline.smoke.facts import LinkFacts, RankFacts
from pipeline.smoke.judging import Verdict, judge
from pipeline.smoke.results import (
    HOST_COLUMNS,
    as_json,
    host_rows,
    hosts_file,
    lines,
    link_rows,
    machine_of,
    passed_hosts,
)
from tests.pipeline.smoke.test_judging import GBIT, cluster, facts, ring


def slow_cluster():
    return cluster(kernel_seconds=4e-3, chainer_seconds=4e-3, cpu_share=0.25)


def test_rows_and_lines_name_the_host():
    verdicts = judge(slow_cluster(), ring())
    rows = host_rows(verdicts)
    assert all(len(row) == len(HOST_COLUMNS) for row in rows)
    assert [row[:3] for row in rows] == [
        ("PASS", "host0", "0"),
        ("PASS", "host1", "1"),
        ("FAIL", "host2", "2"),
        ("PASS", "host3", "3"),
    ]
    assert rows[2][5:8] == ("4 ms", "4 ms", "25%")
    (line,) = lines(verdicts)
    assert line.startswith("FAIL host2: computes at 0.25 of the others' speed")
    assert passed_hosts(verdicts) == ["host0", "host1", "host3"]
    rows = link_rows(slow_cluster(), ring())
    assert rows[-1] == ("3-0", "host3-host0", "100 us", "1000 Mbit/s")


def test_a_sentence_for_several_hosts_is_one_line():
    verdicts = judge(cluster())
    verdicts[0].faults.append("b")
    for verdict in verdicts[1:3]:
        verdict.advice.append("a")
    assert [*lines(verdicts)] == ["FAIL host0: b", "advice for host1, host2: a"]


def test_rows_of_hosts_without_measurements_have_versions_alone():
    ranks = [RankFacts(i, "a", {"NumPy": "2"}) for i in range(3)]
    (row,) = host_rows([Verdict("a", ranks, ["NumPy is 2"])])
    assert row[:3] == ("FAIL", "a", "0-2")
    assert len(row) == len(HOST_COLUMNS)


def test_the_hosts_that_passed_for_each_launcher():
    ranks = [facts(i, "abb"[i]) for i in range(3)]
    verdicts = judge(ranks)
    assert hosts_file(verdicts, "MPICH Version: 5.0.2") == "a:1\nb:2\n"
    assert hosts_file(verdicts, "Open MPI v5.0") == "a slots=1\nb slots=2\n"
    verdicts[0].faults.append("a fault")
    assert hosts_file(verdicts, "MPICH") == "b:2\n"


def test_the_machine_of_the_facts():
    links = ring(slow=(1, 2))
    machine = machine_of(slow_cluster(), links)
    assert machine.ranks == 4
    assert machine.speeds == (1.0, 1.0, 0.25, 1.0)
    # Links between neighbours; that from the last rank to the first is none of a plan.
    found = machine.links()
    np.testing.assert_allclose(found.bandwidth, [GBIT, GBIT / 10, GBIT / 10], rtol=0.1)
    np.testing.assert_allclose(found.latency, [1e-4] * 3)
    assert machine.memory == 0.9 * 8 * 2**30
    assert (machine.disk.read, machine.disk.write) == (1e9, 5e8)


def test_ranks_of_a_host_share_its_memory():
    ranks = [facts(i, "aab"[i]) for i in range(3)]
    memory = machine_of(ranks, []).memory
    assert memory[0] == memory[1] == memory[2] / 2


def test_one_rank_alone_is_a_machine():
    machine = machine_of([facts(0, "a", disk_read=None, disk_write=None)], [])
    assert machine.ranks == 1
    assert machine.disk is None
    assert machine.speeds is None


def test_a_file_has_the_facts_beside_the_machine(tmp_path):
    ranks, links = slow_cluster(), ring()
    machine = machine_of(ranks, links)
    machine.save(tmp_path / "machine.json", as_json(judge(ranks, links), links))
    assert Machine.load(tmp_path / "machine.json") == machine
    about = json.loads((tmp_path / "machine.json").read_text())["about"]
    assert [host["passed"] for host in about["hosts"]] == [True, True, False, True]
    assert about["hosts"][2]["ranks"][0]["cpu_share"] == 0.25
    assert about["links"][0] == {
        "first": 0,
        "second": 1,
        "latency": 1e-4,
        "bandwidth": GBIT,
    }


def test_links_of_two_ranks():
    links = [LinkFacts(0, 1, 1e-5, 1e9)]
    assert link_rows(cluster(2), links)[0][:2] == ("0-1", "host0-host1")
