"""The points in which claims are checked."""

import pytest

from benchmarks.paper_tables.claim import (
    are_close,
    ideal,
    listed,
    never_rises,
)
from benchmarks.paper_tables.points import FIG4, Point
from divisible.schedules.paper_model import PerformanceModel
from tests.benchmarks.paper_tables.samples_for_tests import measured


def test_rows_are_picked_by_their_points():
    points = {
        Point("mlp", 32, 40, n, m, rate=rate): n / m
        for n in (4, 2)
        for m in (1, 2)
        for rate in ("1gbit", "10gbit")
    }
    points[Point("mlp", 64, 40, 2, 1)] = 9.0
    found = measured(points)
    assert len(found) == 9 and len(found.of(hosts=2, rate="1gbit")) == 3
    assert list(found.by("hosts")) == [2, 4]
    usual = found.usual("mlp")
    assert len(usual) == 4 and usual.fastest.speedup == 4.0
    assert not found.usual("vgg16")


def test_the_papers_way_is_its_loop_or_else_its_cut():
    loop, cut = (
        Point("vgg16", 32, 40, 2, 4, schedule=schedule) for schedule in (FIG4, "1f1b")
    )
    for points, way in (
        ([loop, cut], "as in the paper"),
        ([cut], "equal layers, 1F1B"),
    ):
        (row,) = measured(dict.fromkeys(points, 1.0)).in_the_papers_way()
        assert row.point.way == way


def test_equation_3_needs_three_points_of_a_series():
    model = PerformanceModel(4, 40.0, 2.0, 3.0)
    points = [Point("mlp", 32, 40, 4, m) for m in (2, 5, 10)]
    found = measured({point: 60 / model(point.microbatches) for point in points})
    assert found.equation()(20) == pytest.approx(model(20))
    assert found.of(microbatches=5).equation() is None


def test_numbers_that_differ_by_noise_are_the_same():
    assert are_close([1.05, 2.0], [1.0, 2.1]) and not are_close([1.2], [1.0])
    assert never_rises([2.0, 1.0, 1.05]) and not never_rises([1.0, 1.2])
    assert listed([1.234, 5], ".1f") == "1.2, 5.0"
    assert ideal(hosts=4, turns=5) == 2.5
