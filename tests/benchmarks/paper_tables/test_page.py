"""The page with its table and figures, and the points as CSV."""

import csv

import pytest

from benchmarks.paper_tables.page import digits, write
from benchmarks.paper_tables.points import (
    OURS,
    SAMPLES,
    Point,
    Scale,
    with_serial,
)
from benchmarks.paper_tables.samples import append
from tests.benchmarks.paper_tables.samples_for_tests import sample


def points(model, **options):
    return [Point(model, 32, 40, n, m, **options) for n in (2, 4) for m in (1, 3, 12)]


def test_page_figures_and_points_are_written(tmp_path):
    figures = {
        6: points("mlp"),
        8: points("mlp", rate="100mbit"),
        9: points("mlp"),
        10: [Point("mlp", 64, 40, 4, m) for m in (1, 3)],
        13: [*points("vgg16"), *points("vgg16", cut=OURS, schedule="zb_h1")],
    }
    every = with_serial(point for group in figures.values() for point in group)
    for point in every:
        seconds = 12.0 if point.schedule == "serial" else 24.0 / point.microbatches
        stolen = None if point.size == 64 else 0.0
        found = sample(point, seconds=seconds, stolen=stolen)
        append(tmp_path / SAMPLES, found)
    write(figures, tmp_path, tmp_path, 1.6, Scale())
    text = (tmp_path / "README.md").read_text()
    assert "\n| mlp | 4 | 6.00 (m = 12, 1f1b) | " in text
    (line,) = [row for row in text.splitlines() if row.startswith("| vgg16 | 2 |")]
    assert line.count("6.00 (m = 12, ") == 2 and "(m = 12, zb_h1)" in line
    assert "(fitted)" in line
    assert "\n2 points (mlp 64) are older" in text
    # Fig. 9 has no point that Fig. 6 has not.
    assert "## Fig. 13: VGG16" in text and "## Fig. 9" not in text
    assert not (tmp_path / "fig09.png").exists()
    for number in ("06", "07", "08", "10", "12", "13"):
        name = f"fig{number}.png"
        assert name in text
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "points.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(set(every) - {p.serial for p in every})
    assert lines[1]["microbatches"] == "3" and lines[1]["step_seconds"] == "8"
    assert lines[1]["speedup"] == "1.5" and lines[1]["cuts"] == "0 2 4"
    assert lines[1]["stolen"] == "0"


@pytest.mark.parametrize(
    "value, text",
    [(1.23456789, "1.23457"), (-2.2e-16, "0"), (float("nan"), ""), (184.0, "184")],
)
def test_digits_do_not_depend_on_the_machine(value, text):
    assert digits(value) == text
