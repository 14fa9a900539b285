"""The page of measured points."""

import csv
import sys

import pytest

from benchmarks.common import json_lines
from benchmarks.heterogeneous import efficiency, parameters
from benchmarks.heterogeneous.measured import METHODS, read
from benchmarks.heterogeneous.page import write
from benchmarks.heterogeneous.points import Point, to_json
from tests.benchmarks.heterogeneous.points_for_tests import (
    METHOD_2,
    SRPM,
    everything,
    measured,
)


@pytest.fixture(autouse=True)
def command(monkeypatch):
    # They take long, and have tests of their own.
    monkeypatch.setattr(parameters, "findings", lambda: [])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", efficiency.__spec__)
    monkeypatch.setattr(sys, "argv", ["efficiency", "--rounds", "3"])


def save(file, points):
    for each in points:
        json_lines.append(file, {"point": to_json(each.point), **each.content})


def test_the_page_has_pictures_tables_and_findings(tmp_path):
    file = tmp_path / "points.jsonl"
    save(file, everything())
    write(tmp_path / "page", file, Point("A", 4))
    text = (tmp_path / "page" / "README.md").read_text()
    assert text.startswith("# Fig. 11 of Ozawa, Sugaya and Aso (2005), measured again")
    assert "`python -m benchmarks.heterogeneous.efficiency --rounds 3`" in text
    assert "off by 0% in the median, 0% at most" in text
    assert "| finding of the paper |" in text
    for condition in "ab":
        picture = tmp_path / "page" / f"condition_{condition}.png"
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert f"(condition_{condition}.png)" in text
    assert (tmp_path / "page" / "checks.png").read_bytes()[:4] == b"\x89PNG"
    assert "(checks.png)" in text
    rows = [line for line in text.splitlines() if line.startswith("| method 2 (H")]
    assert len(rows) == 2 and "0.70 (0.70..0.70), in 4 | 0.50" in rows[0]
    with open(tmp_path / "page" / "points.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == sum(len(each.point.ways) for each in everything())
    (row,) = (r for r in rows if (r["condition"], r["hosts"], r["way"])
              == ("B", "7", "SRPM"))  # fmt: skip
    assert row["efficiency"] == row["simulated"] == "0.8" and row["off"] == "0.03"


def test_simulated_points_are_named_so(tmp_path):
    file = tmp_path / "points.jsonl"
    save(file, [measured("A", 4, is_simulated=True)])
    write(tmp_path, file, Point("B", 8, is_simulated=True))
    text = (tmp_path / "README.md").read_text()
    assert "(2005), simulated" in text and "Dashed" not in text
    assert "Fig. 12: checks" not in text


def test_points_of_other_settings_are_left_out(tmp_path):
    file = tmp_path / "points.jsonl"
    save(file, [measured("B", 5), measured("A", 6, factor=8), measured("A", 4)])
    save(file, [measured("A", 4, {SRPM: 0.6}, checks=5)])
    found = read(file, Point("A", 8))
    # Checks may differ, and the newest line counts.
    assert [str(each.point)[10:] for each in found] == ["A, 4 hosts", "B, 5 hosts"]
    assert found[0].efficiency(SRPM) == pytest.approx(0.6)


def test_the_best_number_of_groups_counts():
    each = measured("A", 6, noise=0.1)
    assert each.way(METHOD_2) == "H_rev, 6"
    assert each.efficiency(METHOD_2) == pytest.approx(0.7)
    assert each.efficiency("H_rev, 2") == pytest.approx(0.35)
    assert each.range(METHOD_2) == pytest.approx((0.63, 0.77))
    for method in METHODS:
        assert each.simulated(method) == pytest.approx(each.efficiency(method))
