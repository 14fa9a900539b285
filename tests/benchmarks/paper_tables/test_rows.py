"""What is made of samples: speed-ups, and steps by equation (3)."""

import dataclasses

import numpy as np
import pytest

from benchmarks.paper_tables.points import SAMPLES, Point, with_serial
from benchmarks.paper_tables.rows import (
    by_equation,
    fit_points,
    in_round,
    in_rounds_of,
    rows,
)
from benchmarks.paper_tables.samples import append
from divisible.schedules.paper_model import PerformanceModel
from tests.benchmarks.paper_tables.samples_for_tests import sample


@pytest.mark.parametrize(
    "found, chosen",
    [
        ([1, 3, 5, 12, 40, 80], [3, 12, 40]),
        ([1, 2, 4, 20], [2, 4, 20]),
        ([1, 2], [1, 2]),
    ],
)
def test_equation_3_is_fitted_as_in_figure_12(found, chosen):
    assert fit_points(found) == chosen


def test_equation_3_is_fitted_to_each_round():
    models = [PerformanceModel(4, a, 2.0, 3.0) for a in (40.0, 80.0)]

    def steps(m):
        point = Point("mlp", 64, 40, 4, m)
        return [sample(point, round=r, seconds=f(m)) for r, f in enumerate(models)]

    # With 40 there was one round only.
    series = {3: steps(3), 12: steps(12), 40: steps(40)[:1]}
    rounds = [in_round(series, number) for number in (0, 1)]
    point = Point("mlp", 64, 40, 4, 5)
    first, second = by_equation(point, rounds)
    assert first == pytest.approx(models[0](5))
    assert first < second
    assert by_equation(dataclasses.replace(point, hosts=1), rounds) == []
    assert by_equation(point, [{3: rounds[0][3]}]) == []


def test_steps_are_compared_within_their_round():
    # The machine is half as fast in the second round.
    point = Point("mlp", 32, 40, 2, 4)
    steps = [sample(point, round=r, seconds=s) for r, s in ((1, 4.0), (0, 2.0))]
    rounds = ((0, 3.0), (1, 6.4), (2, 5.0))
    others = [sample(point.serial, round=r, seconds=s) for r, s in rounds]
    assert in_rounds_of(steps, others) == [6.4, 3.0]
    # One that has no round of its own is compared with the last.
    assert in_rounds_of(steps, others[1:]) == [6.4, 5.0]
    assert in_rounds_of(steps, None) == []


def test_rows_have_the_median_of_the_rounds(tmp_path):
    points = [Point("mlp", 32, 40, 2, m) for m in (1, 2, 4, 8)]
    # The hosts of the second round are five times as slow.
    for number, slow in enumerate((1.0, 5.0)):
        model = PerformanceModel(2, 40.0 * slow, 2.0 * slow, 1.0 * slow)
        for point in with_serial(points):
            m = point.microbatches
            seconds = 60.0 * slow if point.schedule == "serial" else float(model(m))
            if m == 4:
                # Slower than the model by as much as the others are not.
                seconds *= 1.25
            found = sample(point, round=number, seconds=seconds, stolen=0.01 * number)
            append(tmp_path / SAMPLES, found)
    # Measured, but not in the table.
    append(tmp_path / SAMPLES, sample(Point("mlp", 32, 40, 2, 20)))
    found = rows(tmp_path, points)
    assert list(found) == points
    assert [row.is_fitted for row in found.values()] == [False, True, True, True]
    one = found[points[1]]
    assert one.serial == [60.0, 300.0] and one.stolen == 0.01 and not one.is_older
    assert one.speedup == pytest.approx(60.0 / one.seconds[0])
    assert one.single == found[points[0]].seconds
    assert one.step == pytest.approx(3 * one.seconds[0])
    assert one.equation[1] == pytest.approx(5 * one.equation[0])
    errors = [row.error_of_equation for row in found.values()]
    # Fitted to a step that was too slow.
    assert errors[1] > 0 and errors[2] < 0
    expected = one.speedup / (1 + errors[1])
    assert one.speedup_by_equation == pytest.approx(expected)


def test_on_one_host_there_is_no_equation(tmp_path):
    point = Point("mlp", 32, 40, 1, 4)
    for each in with_serial([point]):
        append(tmp_path / SAMPLES, sample(each, stolen=None))
    (row,) = rows(tmp_path, [point]).values()
    assert row.is_older and row.speedup == 1.0 and row.single == []
    assert np.isnan(row.speedup_by_equation) and np.isnan(row.error_of_equation)
