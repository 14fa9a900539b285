"""What is made of samples: speed-ups, and steps by equation (3)."""

import dataclasses

import numpy as np
import pytest

from benchmarks.paper_tables.points import Point, with_serial
from benchmarks.paper_tables.rows import (
    by_equation,
    fit_points,
    in_round,
    in_rounds_of,
    rows,
)
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


def test_the_undivided_step_may_have_run_on_a_larger_share():
    point = Point("vgg16", 32, 40, 8, 4, rate="100mbit")
    near, far = (dataclasses.replace(point.serial, hosts=n) for n in (2, 4))
    samples = {
        point: [sample(point, share=0.2)],
        # A step of other arithmetic does not count.
        dataclasses.replace(near, kernels="off"): [sample(near, share=0.2)],
        far: [sample(far, share=0.4, seconds=9.0)],
        near: [sample(near, share=0.8, seconds=5.0)],
    }
    (row,) = rows(samples, [point]).values()
    assert row.serial == [pytest.approx(20.0)] and row.is_scaled
    assert not rows({point: samples[point]}, [point])
    # A step on the same hosts comes first.
    samples[point.serial] = [sample(point.serial, share=0.2, seconds=21.0)]
    (row,) = rows(samples, [point]).values()
    assert row.serial == [21.0] and not row.is_scaled


def test_rows_have_the_median_of_the_rounds():
    points = [Point("mlp", 32, 40, 2, m) for m in (1, 2, 4, 8)]
    samples = {}
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
            samples.setdefault(point, []).append(found)
    # Measured, but not in the table.
    other = Point("mlp", 32, 40, 2, 20)
    found = rows({**samples, other: [sample(other)]}, points)
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


def test_on_one_host_there_is_no_equation():
    point = Point("mlp", 32, 40, 1, 4)
    samples = {each: [sample(each, stolen=None)] for each in with_serial([point])}
    (row,) = rows(samples, [point]).values()
    assert row.is_older and row.speedup == 1.0 and row.single == []
    assert np.isnan(row.speedup_by_equation) and np.isnan(row.error_of_equation)
