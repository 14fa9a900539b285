"""The page with its tables and figures, and the points as CSV."""

import csv

import pytest

from benchmarks.paper_tables import campaigns, page
from benchmarks.paper_tables.arithmetic import OFF, ON, Arithmetic
from benchmarks.paper_tables.page import digits, publish, write
from benchmarks.paper_tables.points import (
    FIG4,
    OURS,
    SAMPLES,
    SERIAL,
    Point,
    Scale,
    with_serial,
)
from benchmarks.paper_tables.samples import append, read
from tests.benchmarks.paper_tables.samples_for_tests import sample


def points(model, scale, **options):
    return [
        Point(
            *(model, 32, 40, n, m),
            **options,
            **scale.arithmetic._asdict(),
            update=scale.update,
        )
        for n in (2, 4)
        for m in (1, 3, 12)
    ]


def few_figures(scale):
    return {
        6: points("mlp", scale),
        8: points("mlp", scale, rate="100mbit"),
        9: points("mlp", scale),
        10: [Point("mlp", 64, 40, 4, m, **scale.arithmetic._asdict()) for m in (1, 3)],
        11: [],
        13: [
            *points("vgg16", scale, schedule=FIG4),
            *points("vgg16", scale),
            *points("vgg16", scale, cut=OURS, schedule="zb_h1"),
        ],
        14: [],
    }


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The folder of the repository's samples."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for module in (campaigns, page):
        monkeypatch.setattr(module, "DATA", folder)
    monkeypatch.setattr(campaigns, "figures", few_figures)
    return folder


def measure(folder, every, **values):
    """Appends samples as if they had been measured."""
    folder.mkdir(exist_ok=True)
    for point in every:
        seconds = 12.0 if point.schedule == SERIAL else 24.0 / point.microbatches
        append(folder / SAMPLES, sample(point, seconds=seconds, **values))


def test_page_figures_and_points_are_written(repository):
    every = [point for group in few_figures(Scale()).values() for point in group]
    every = with_serial(point for point in every if point.schedule != FIG4)
    measure(repository, [point for point in every if point.size == 32])
    measure(repository, [point for point in every if point.size == 64], stolen=None)
    write(repository, repository, Scale())
    text = (repository / "README.md").read_text()
    assert "\n**Baseline, before there were kernels.** A step is forward and" in text
    assert "\n| mlp | 4 |  | 6.00 (m = 12) |  | " in text
    assert " (fitted) |  | 1 |\n" in text
    assert "\n| vgg16 | 2 |  | 6.00 (m = 12) | 6.00 (m = 12, zb_h1) | " in text
    assert "\n2 points (mlp 64) are older" in text
    # Fig. 9 has no point that Fig. 6 has not.
    assert "## Fig. 13: VGG16" in text and "## Fig. 9" not in text
    assert not (repository / "fig09.png").exists()
    for number in ("06", "07", "08", "10", "12", "13"):
        name = f"fig{number}.png"
        assert name in text
        assert (repository / name).read_bytes().startswith(b"\x89PNG")
    with open(repository / "points.csv") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(set(every) - {p.serial for p in every})
    assert lines[1]["microbatches"] == "3" and lines[1]["step_seconds"] == "8"
    assert lines[1]["speedup"] == "1.5" and lines[1]["cuts"] == "0 2 4"
    assert lines[1]["stolen"] == "0" and lines[1]["rounds"] == "1"
    assert lines[1]["baseline"] == "yes"


def test_the_samples_of_others_are_a_baseline_until_they_are_published(
    repository, tmp_path
):
    mine, scales = tmp_path / "mine", {}
    for kernels, provider in ((OFF, "numpy"), (ON, "blas")):
        scale = Scale(arithmetic=Arithmetic(kernels, provider), update=True)
        scales[kernels] = with_serial(few_figures(scale)[13])
    measure(repository, scales[OFF], machine="theirs")
    for number in range(3):
        measure(mine, scales[ON], machine="mine", round=number)
    write(mine, mine, Scale())
    text = (mine / "README.md").read_text()
    first, second = text.split("\n**Baseline, kernels off: Chainer's own arithmetic.**")
    assert "\n**Kernels on, provider blas.** A step is forward, backward and" in first
    assert "\nMeasured on mine, today.\n" in first and "theirs" not in first
    assert "\nMeasured on theirs, today.\n" in second
    row = "| vgg16 | 4 | 6.00 (m = 12, in fact 10) | 6.00 (m = 12) | 6.00 (m = 12, zb_"
    assert row in first and row in second
    assert " | 3 |\n" in first and " | 1 |\n" in second
    assert "it runs the 40 samples of vgg16 in 10 microbatches, not 12." in first
    for name in ("fig13-kernels-on-blas.png", "fig13-baseline-kernels-off.png"):
        assert (mine / name).exists() and name in second

    publish(mine, repository)
    found = read(repository / SAMPLES)
    assert set(found) == {*scales[OFF], *scales[ON]}
    assert {len(found[point]) for point in scales[ON]} == {3}
    text = (repository / "README.md").read_text()
    assert "aseline" not in text and "mine" in text and "theirs" in text


@pytest.mark.parametrize(
    "value, text",
    [(1.23456789, "1.23457"), (-2.2e-16, "0"), (float("nan"), ""), (184.0, "184")],
)
def test_digits_do_not_depend_on_the_machine(value, text):
    assert digits(value) == text
