"""Remapping while hosts change."""

import contextlib
import threading
from pathlib import Path

import pytest

from benchmarks.common.results import Result
from benchmarks.data_parallel.exchange import Goals
from benchmarks.heterogeneous.changes import (
    PARTS,
    add_goals,
    meanwhile,
    ways_of,
    write_table,
)
from benchmarks.heterogeneous.following import Job, follow
from tests.support.mpiexec import assert_on_ranks

B = [0.63, 0.63, 0.63, 1.0]


def checks(*seconds):
    return [{"seconds": s, "ratio": 0.9, "action": None} for s in seconds]


def test_the_table_and_its_goals(tmp_path):
    found = {"SRPM": checks(3, 3, 3, 3), "DRPM": checks(3, 2, 2, 2)}
    result, goals = Result("", tmp_path / "table.txt"), Goals()
    write_table(result, "wrong", found)
    result.save()
    add_goals(goals, "wrong", found)
    found = {
        "DRPM, given": checks(9, 9, 2, 2, 2),
        "DRPM, unknown": checks(1, 1, 1, 2, 2),
    }
    add_goals(goals, "unknown", found)
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert lines[2].split() == ["check", "SRPM", "DRPM"]
    assert lines[-1].split() == ["all", "12.00", "s", "9.00", "s"]
    assert [line.split(": ")[-2:] for line in goals.lines] == [
        ["1.33, wanted 1.1", "met"],
        ["1.00, wanted 0.95", "met"],
    ]


@pytest.mark.parametrize("part", PARTS)
def test_every_way_is_followed(part):
    assert all(way["remaps"] for way in ways_of(part, B).values())
    if part == "wrong":
        believed = {tuple(way["abilities"]) for way in ways_of(part, B).values()}
        assert believed == {(0.63, 0.63, 0.63, 2.0)}


def test_a_host_changes_in_the_second_part_of_each_way(tmp_path):
    marker, log = str(tmp_path / "way"), []

    @contextlib.contextmanager
    def change(cluster, host, share):
        log.append((cluster, host, share))
        yield
        log.append("over")

    watch = meanwhile(change, marker, 2, 3, 0.25)
    thread = threading.Thread(target=watch, args=("hosts",))
    thread.start()
    for i in range(2):
        Path(f"{marker}{i}").touch()
        Path(f"{marker}{i}end").touch()
    thread.join(10)
    assert log == [("hosts", 3, 0.25), "over"] * 2


def test_who_watches_ends_with_the_folder(tmp_path):
    folder = tmp_path / "gone"
    watch = meanwhile(None, str(folder / "way"), 2, 3, 0.25)
    thread = threading.Thread(target=watch, args=("hosts",))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def following(comm, marker):
    ways = ways_of("halved", B)
    job = Job(B, [5, 12, 3, 24], ways, every=2, n_checks=3, at=1, marker=marker)
    answer = follow(comm, job)
    assert list(answer) == list(job.ways)
    for each in answer.values():
        assert [check["iteration"] for check in each] == [2, 4, 6]
    assert all(check["action"] is None for check in answer["SRPM"])


def test_ways_follow_each_other(tmp_path):
    assert_on_ranks(4, following, str(tmp_path / "way"))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["way0", "way0end", "way1", "way1end", "way2", "way2end"]
