"""Findings on other widths, in points that follow the paper or do not."""

import pytest

from benchmarks.paper_tables import input_size_findings as findings
from benchmarks.paper_tables.claim import Measured
from benchmarks.paper_tables.points import Point
from tests.benchmarks.paper_tables.samples_for_tests import measured

#: Widths in place of the paper's input sizes.
WIDTHS = (100, 200, 300, 500, 1000)


@pytest.mark.parametrize("check", [claim.check for claim in findings.CLAIMS])
def test_without_points_nothing_is_found(check):
    assert check(Measured([])) is None


def sizes(over_single):
    """Measures all widths; speed-ups over one microbatch by hosts, width, samples."""
    return measured(
        {
            Point("mlp", width, 1200, n, m): over_single(n, width, 1200 // m)
            if m > 1
            else 1.0
            for n in findings.HOSTS
            for width in WIDTHS
            for m in (1, 2, 5, 10, 20, 40)
        }
    )


def as_in_the_paper(hosts, width, samples):
    if width <= 200:
        order = (30, 120, 60, 240, 600)
        return 1 + order.index(samples) / 10
    value = 3.0 if samples == 120 else 2.0
    return value - 0.1 * (width == 1000 and hosts < 16)


def larger_is_better(hosts, width, samples):
    return 1 + 0.001 * samples + width / 100


@pytest.mark.parametrize(
    "check",
    [
        findings.small_sizes,
        findings.usual_samples,
        findings.usual_samples_when_small,
        findings.largest_size,
    ],
)
def test_input_sizes(check):
    assert check(sizes(as_in_the_paper)).is_reproduced
    turned = sizes(lambda *key: 12.5 - larger_is_better(*key))
    for other in (sizes(larger_is_better), turned):
        is_small = check is findings.small_sizes
        assert check(other).is_reproduced == (is_small and other is not turned)
