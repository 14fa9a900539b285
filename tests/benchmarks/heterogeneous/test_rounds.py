"""Hosts measure the points of Fig. 11."""

import dataclasses
import json
from unittest import mock

import pytest

from benchmarks.heterogeneous import rounds
from benchmarks.heterogeneous.measured import METHODS, read
from benchmarks.heterogeneous.points import Point, to_json
from tests.support.mpiexec import assert_on_ranks

POINT = Point("B", 4, factor=1, rounds=2, every=2, checks=3, with_ours=True)


def all_ways(comm):
    found = rounds.measure(comm, POINT)
    json.dumps(found)
    assert list(found["ways"]) == list(found["simulated"]) == list(POINT.ways)
    assert all(len(each) == 2 and min(each) > 0 for each in found["ways"].values())
    assert [len(each) for each in found["alone"]] == [4, 4]
    assert len(found["off"]) == 2
    dynamic = [name for name in POINT.ways if "DRPM" in name]
    assert list(found["checks"]) == list(found["learning"]) == dynamic
    # Three checks come before the rounds, and one for two steps, which may be repeated.
    assert {len(each) for each in found["checks"].values()} <= {4, 5}
    assert found["checks"]["DRPM, unknown"][0]["action"] == "whole"


@pytest.mark.matrix
def test_all_ways_train_and_take_turns():
    assert_on_ranks(4, all_ways)


def points_in_turn(comm, folder):
    """Hosts are asked for the shares of a point before it is measured."""
    asked, file = [], folder / "points.jsonl"
    points = [dataclasses.replace(POINT, hosts=hosts, rounds=1) for hosts in (2, 3)]
    with mock.patch.object(rounds, "ask", lambda *words: asked.append(words)):
        rounds.measure_points(
            comm, [to_json(point) for point in points], str(file), str(folder)
        )
    if comm.rank == 0:
        assert asked == [(folder, i, p.shares) for i, p in enumerate(points)]
        assert [each.point for each in read(file, points[0])] == points
        for each in read(file, points[0]):
            assert all(each.efficiency(method) > 0 for method in METHODS)
    else:
        assert asked == []


def test_each_point_is_kept_and_has_hosts_of_its_own(tmp_path):
    assert_on_ranks(3, points_in_turn, tmp_path)
