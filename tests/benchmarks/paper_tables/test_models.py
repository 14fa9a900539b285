"""Where the models of the paper's figures are cut."""

import pytest

from benchmarks.paper_tables.models import build, cuts
from benchmarks.paper_tables.points import OURS, Point
from divisible import LayerCost, Profile


@pytest.mark.parametrize("n_hosts", [1, 2, 3, 8, 32])
def test_the_papers_cut_has_equally_many_layers(n_hosts):
    point = Point("mlp", 8, 10, n_hosts, 1)
    hosts = point.on(1.6)
    found = cuts(point, [], hosts)
    assert found[0] == 0 and found[-1] == len(build(point)) == 63
    linear = [(b - a + 1) // 2 for a, b in zip(found, found[1:])]
    assert sum(linear) == 32 and max(linear) - min(linear) <= 1
    assert cuts(Point("vgg16", 32, 8, n_hosts, 1), [], hosts)[-1] == 38


@pytest.mark.parametrize(
    "seconds, stages", [([1, 1, 1, 1], 4), ([1, 1, 12, 1], 3), ([1, 1, 1, 30], 2)]
)
def test_our_cut_has_only_stages_that_make_it_faster(seconds, stages):
    profiles = [
        Profile([LayerCost(s * n, s * n, s * n, output_bytes=n) for s in seconds], n)
        for n in (1, 10)
    ]
    point = Point("vgg16", 32, 40, 4, 10, cut=OURS)
    found = cuts(point, profiles, point.on(1.6))
    assert len(found) == stages + 1 and found[0] == 0 and found[-1] == 4
