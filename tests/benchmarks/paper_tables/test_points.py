"""The points of the paper's figures."""

import pytest

from benchmarks.common.hosts import Hosts
from benchmarks.paper_tables.points import FIT, PRINTED, Point, Scale, figures


def test_the_papers_points_are_among_those_measured():
    found = figures(Scale())
    assert sorted(found) == [6, 8, 9, 10, 11, 13, 14]
    for figure, model in ((6, "mlp"), (13, "vgg16")):
        measured = {(point.hosts, point.microbatches) for point in found[figure]}
        printed = {(hosts, m) for hosts, (m, _) in PRINTED[model].items()}
        assert printed <= measured
    assert {(16, m) for m in FIT} <= {(p.hosts, p.microbatches) for p in found[6]}
    assert {point.cut for point in found[14]} == {"equal layers", "ours"}


def test_small_minibatches_have_fewer_points():
    points = figures(Scale(batch=8))[14]
    assert max(point.microbatches for point in points) == 5


def test_hosts_share_the_machine():
    assert Point("mlp", 64, 40, 4, 1).on(1.6) == Hosts(4, 0.4, "1gbit")
    assert Point("mlp", 64, 40, 1, 1, rate="10gbit").on(1.6) == Hosts(1, 1.0, "10gbit")


@pytest.mark.parametrize(
    "rate, bandwidth", [("1gbit", 125e6), ("100mbit", 12.5e6), (None, float("inf"))]
)
def test_hosts_know_their_bandwidth(rate, bandwidth):
    assert Hosts(2, 0.5, rate).bandwidth == bandwidth
