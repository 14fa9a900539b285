"""The figures can be read, however few points they have."""

import pytest
from matplotlib.figure import Figure

from benchmarks.paper_tables import plots
from benchmarks.paper_tables.points import Scale
from tests.benchmarks.paper_tables.samples_for_tests import measured


def rows_of(speedups):
    """Rows of the perceptron on 2 hosts, by number of microbatches."""
    points = {Scale().of("mlp", 2, m): value for m, value in speedups.items()}
    return list(measured(points))


@pytest.mark.parametrize("fastest", [2.0, 40.0])
def test_seconds_have_numbers(fastest):
    figure = Figure()
    plots.times(figure, rows_of({1: 1.0, 12: fastest}))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    shown = [
        tick.label1.get_text()
        for tick in axes.yaxis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    assert len(shown) >= 2 and all(float(text) > 0 for text in shown)


@pytest.mark.parametrize("m, has_stars", [(5, True), (12, False)])
def test_stars_are_explained_where_there_are_some(m, has_stars):
    figure = Figure()
    plots.speedups(figure, rows_of({1: 1.0, m: 1.3}))
    (legend,) = figure.legends
    assert ("stars" in legend.get_title().get_text()) == has_stars
