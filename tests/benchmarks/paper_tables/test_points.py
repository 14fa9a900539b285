"""The points of the paper's figures."""

import pytest

from benchmarks.common.hosts import Hosts
from benchmarks.paper_tables.arithmetic import OFF, Arithmetic
from benchmarks.paper_tables.points import (
    FIG4,
    FIT,
    PRINTED,
    Point,
    Scale,
    figures,
    from_json,
    quick,
    to_json,
    with_serial,
)


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


@pytest.mark.parametrize(
    "batch, m, turns", [(84, 20, 17), (90, 20, 18), (84, 12, 12), (10, 10, 10)]
)
def test_the_papers_loop_cuts_into_equal_parts_that_are_rounded_up(batch, m, turns):
    point = Point("vgg16", 32, batch, 8, m, schedule=FIG4)
    assert point.turns == len(range(0, batch, point.samples)) == turns
    assert Point("vgg16", 32, batch, 8, m).turns == m


def test_a_quick_run_has_every_way_on_two_to_eight_hosts():
    every = figures(Scale(arithmetic=Arithmetic(OFF), update=True))
    for figure in (13, 14):
        points = quick(every[figure])
        ways = {(point.cut, point.schedule) for point in points}
        assert ways == {
            ("equal layers", "fig4"),
            ("equal layers", "1f1b"),
            ("ours", "zb_h1"),
        }
        assert {point.hosts for point in points} == {2, 4, 8}
        assert all(point.update and point.kernels == "off" for point in points)
        serial = [p for p in with_serial(points, few=True) if p.schedule == "serial"]
        assert [(point.hosts, point.update) for point in serial] == [(2, True)]


@pytest.mark.parametrize("figure, hosts", [(8, 4), (9, 4), (10, 8), (11, 16)])
def test_a_quick_run_has_some_points_of_every_figure(figure, hosts):
    points = quick(figures(Scale())[figure])
    assert {point.hosts for point in points} == {hosts}
    assert {point.microbatches for point in points} >= {1, 20}
    assert len({point.size for point in points}) >= (1 if figure == 8 else 2)


def test_samples_from_before_the_kernels_state_neither_kernels_nor_update():
    content = to_json(Point("mlp", 64, 40, 4, 1))
    for name in ("kernels", "provider", "update"):
        del content[name]
    found = from_json(content)
    assert found.arithmetic == Arithmetic("unstated", "numpy") and not found.update
