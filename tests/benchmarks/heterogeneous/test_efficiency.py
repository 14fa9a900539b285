"""The table of efficiencies, and what hosts do for it."""

import pytest

from benchmarks.common.results import Result
from benchmarks.data_parallel.exchange import Goals
from benchmarks.heterogeneous.efficiency import (
    best,
    efficiencies,
    enlarged,
    shares_of,
    ways_of,
    write_table,
)
from benchmarks.heterogeneous.ranks import Job, measure
from tests.support.mpiexec import assert_on_ranks


def found(seconds):
    """Two rounds on two hosts that take 3 s and 6 s alone: together 2 s at best."""
    return {
        "alone": [[3.0, 6.0]] * 2,
        "off": [0.02, 0.3],
        "ways": {name: [s, 2 * s] for name, s in seconds.items()},
        "checks": {"DRPM, given": [{"action": "line"}, {"action": None}]},
    }


SECONDS = {
    "method 1, 1": 8.0,
    "method 1, 2": 4.0,
    "H_rev, 1": 2.5,
    "H_rev, 2": 3.0,
    "SRPM": 2.5,
    "DRPM, given": 2.0,
    "DRPM, unknown": 2.5,
}


def test_efficiency_of_each_round():
    values = efficiencies(found(SECONDS))
    assert values["DRPM, given"] == pytest.approx([1.0, 0.5])
    assert values["SRPM"] == pytest.approx([0.8, 0.4])
    assert best(values, "method 1") == "method 1, 2"
    assert best(values, "H_rev") == "H_rev, 1"


def test_the_table(tmp_path):
    result, goals = Result("", tmp_path / "table.txt"), Goals()
    write_table(result, goals, "hosts", found(SECONDS), is_a=True)
    result.save()
    text = (tmp_path / "table.txt").read_text()
    assert "method 1, 2           0.375  (0.250..0.500)    6000.0  best of" in text
    assert "round by round: 2%, 30%" in text and "given: line None" in text
    assert goals.lines == [
        "hosts: SRPM over H_rev, 1: 1.00, wanted 0.97: met",
        "hosts: SRPM over method 1, 2: 1.60, wanted 1.25: met",
        "hosts: DRPM, unknown over given: 0.80, wanted 0.95: MISSED",
    ]


def test_ways_shares_and_sizes():
    assert [name for name in ways_of(5) if "DRPM" in name] == []
    assert len(ways_of(8)) == 4 + 4 + 2 + 2
    assert shares_of([1, 3], 1.6) == pytest.approx([0.4, 1.2])
    assert enlarged(8) == (203, 640, 26, 8192)


def all_ways(comm):
    shape, abilities = [5, 12, 3, 24], [0.5, 1.0, 1.0, 1.0]
    job = Job(
        abilities, shape, ways_of(4), rounds=2, steps=1, every=2, checks=2, tries=1
    )
    answer = measure(comm, job)
    assert list(answer["ways"]) == list(ways_of(4))
    assert all(len(each) == 2 and min(each) > 0 for each in answer["ways"].values())
    assert [len(each) for each in answer["alone"]] == [4, 4]
    assert len(answer["off"]) == 2
    assert list(answer["checks"]) == ["DRPM, given", "DRPM, unknown"]
    assert len(answer["checks"]["DRPM, given"]) == 3


def test_all_ways_train():
    assert_on_ranks(4, all_ways)
