"""Findings on VGG16 and ResNet50, in points that follow the paper or do not."""

import pytest

from benchmarks.paper_tables import model_findings as findings
from benchmarks.paper_tables.claim import Measured
from benchmarks.paper_tables.points import BATCH, EQUAL, FIG4, OURS, Point
from tests.benchmarks.paper_tables.samples_for_tests import measured


def steps(model, speedups, schedule=FIG4, cut=EQUAL):
    return {
        Point(model, 32, BATCH[model], n, 20, schedule=schedule, cut=cut): speedup
        for n, speedup in speedups.items()
    }


@pytest.mark.parametrize("check", [claim.check for claim in findings.CLAIMS])
def test_without_points_nothing_is_found(check):
    assert check(Measured([])) is None


@pytest.mark.parametrize("four, is_so", [(1.6, True), (1.4, False)])
def test_vgg16_from_four_processes_on(four, is_so):
    points = steps("vgg16", {2: 1.1, 4: four, 8: 2.0})
    # Another way does not count.
    points |= steps("vgg16", {4: 3.0}, "1f1b")
    found = findings.least_speedup(measured(points))
    assert found.is_reproduced == is_so and found.here == f"{four:.2f}, 2.00 on 4, 8"


@pytest.mark.parametrize("speedup, is_so", [(2.2, True), (3.0, False)])
def test_the_printed_speedup(speedup, is_so):
    points = steps("vgg16", {8: speedup}) | steps("vgg16", {8: 3.5}, "1f1b")
    found = findings.printed_speedup(measured(points))
    assert found.is_reproduced == is_so
    # Fig. 4 makes microbatches of five samples.
    assert found.here == f"{speedup:.2f} in 17 microbatches"
    assert found.why.startswith("-5%; " if is_so else "+29%; ")
    assert found.why.endswith("; equal layers, 1F1B: 3.50")


@pytest.mark.parametrize("sixteen, is_so", [(1.7, True), (2.5, False)])
def test_sixteen_processes(sixteen, is_so):
    points = steps("vgg16", {4: 1.8, 8: 2.32, 16: sixteen})
    # Layers 8 and 9, and 22 and 23, are ReLU and pooling.
    found = findings.many_hosts(measured(points, {16: [*range(0, 32, 2), 38]}))
    assert found.is_reproduced == is_so
    assert found.why.startswith("2 of 16 stages have no parameters; ")


@pytest.mark.parametrize("eight, is_so", [(2.1, True), (3.0, False)])
def test_resnet50_from_four_processes_on(eight, is_so):
    found = findings.no_difference(
        measured(steps("resnet50", {2: 1.2, 4: 2.0, 8: eight}))
    )
    assert found.is_reproduced == is_so


@pytest.mark.parametrize("planned, is_so", [(2.5, True), (1.9, False)])
def test_stages_that_take_equally_long(planned, is_so):
    points = steps("resnet50", {4: 2.0, 8: 2.0}, "1f1b")
    points |= steps("resnet50", {8: planned}, "zb_h1", OURS)
    found = findings.equal_times(measured(points), "resnet50")
    assert found.is_reproduced == is_so
    assert found.here == f"{planned / 2:.2f} times as fast as equal layers on 8"
