"""Points of Fig. 11: abilities, shares and ways."""

import json

import pytest

from benchmarks.heterogeneous.points import Point, from_json, shares_of, to_json
from benchmarks.heterogeneous.training import Way, partition_of


def test_hosts_have_the_abilities_that_the_paper_found():
    point = Point("B", 4, cpu=1.5)
    assert point.told == [0.63, 0.63, 0.63, 1.0]
    assert point.true == [0.49, 0.50, 0.49, 1.0]
    assert sum(point.shares) == pytest.approx(1.5)
    assert point.shares[3] / point.shares[0] == pytest.approx(1 / 0.49)
    exact = Point("B", 4, is_exact=True)
    assert exact.true == exact.told == point.told
    assert shares_of([1, 3], 1.6) == pytest.approx([0.4, 1.2])


@pytest.mark.parametrize(("hosts", "groups"), [(4, 3), (5, 2), (6, 4), (7, 2), (8, 4)])
def test_every_number_of_hosts_has_all_methods(hosts, groups):
    point = Point("A", hosts)
    assert len(point.ways) == 2 * groups + 3
    assert len(Point("A", hosts, with_ours=True).ways) == 2 * groups + 6
    for name, way in point.ways.items():
        partition = partition_of(Way(**way), point.told, point.shape)
        assert partition.n_processors == hosts
        assert Way(**way).is_printed == ("DRPM" in name)


def test_sizes_are_the_papers_enlarged():
    assert Point("A", 4, factor=8).shape == (203, 640, 26, 8192)
    assert Point("A", 4, rate="100mbit").bandwidth == 12.5e6


def test_points_are_kept_as_json():
    point = Point("A", 6, rounds=7, is_exact=True)
    assert from_json(json.loads(json.dumps(to_json(point)))) == point
    assert str(point) == "condition A, 6 hosts"
