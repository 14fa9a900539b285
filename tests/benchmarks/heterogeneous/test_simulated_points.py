"""Points of Fig. 11 without hosts."""

import pytest

from benchmarks.common import json_lines
from benchmarks.heterogeneous.measured import METHODS, Measured, read
from benchmarks.heterogeneous.points import Point
from benchmarks.heterogeneous.simulated_points import simulate, simulated

METHOD_1, METHOD_2, SRPM, GIVEN, UNKNOWN = METHODS


@pytest.mark.parametrize("hosts", [5, 7])
@pytest.mark.parametrize("condition", "AB")
def test_simulated_points_are_as_the_paper_describes(condition, hosts):
    point = Point(condition, hosts, is_simulated=True)
    each = Measured(point, simulated(point, seconds=0.3))
    values = {method: each.efficiency(method) for method in METHODS}
    assert values[METHOD_1] < values[METHOD_2] < values[SRPM] < values[GIVEN] < 1
    assert values[UNKNOWN] == pytest.approx(values[GIVEN], rel=0.05)


def test_without_messages_a_perfect_balance_is_reached():
    point = Point("A", 4, rate="100000gbit", is_exact=True, is_simulated=True)
    each = Measured(point, simulated(point, seconds=0.3))
    assert each.efficiency(SRPM) == pytest.approx(1, abs=0.01)
    assert each.efficiency("H_rev, 4") == pytest.approx(1, abs=0.01)
    assert each.efficiency(METHOD_1) < 0.6
    checks = each.content["checks"][UNKNOWN]
    assert checks[0]["action"] == "whole"
    assert checks[0]["seconds"] > 1.5 * checks[1]["seconds"]


def test_a_point_is_kept(tmp_path):
    file = tmp_path / "points.jsonl"
    point = Point("B", 4, factor=1, is_simulated=True)
    simulate(file, point)
    (each,) = read(file, point)
    assert each.efficiency(METHOD_1) > 0
    assert "simulated" in json_lines.read(file)[0]["machine"]
