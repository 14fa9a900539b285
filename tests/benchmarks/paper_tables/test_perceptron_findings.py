"""Findings on the perceptron, in points that follow the paper or do not."""

import pytest

from benchmarks.paper_tables import perceptron_findings as findings
from benchmarks.paper_tables.claim import Measured
from benchmarks.paper_tables.points import MICROBATCHES, PRINTED, RATES, Point
from divisible.schedules.paper_model import PerformanceModel
from tests.benchmarks.paper_tables.samples_for_tests import measured

CHECKS = {claim.check for claim in findings.CLAIMS}


def speedup(hosts, m, best=20):
    """Speed-ups that are greatest with a number of microbatches."""
    return hosts**0.5 * (1 - 0.01 * abs(m - best))


def perceptron(**speedups):
    """Measures the perceptron of width 500; speed-ups by hosts and microbatches."""
    return measured(
        {Point("mlp", 500, 1200, *key): value for key, value in speedups["of"].items()}
    )


@pytest.mark.parametrize("check", sorted(CHECKS, key=lambda check: check.__name__))
def test_without_points_nothing_is_found(check):
    assert check(Measured([])) is None


@pytest.mark.parametrize("many, is_so", [(0.9, True), (1.1, False)])
def test_microbatches_on_one_process(many, is_so):
    found = findings.one_process(perceptron(of={(1, 1): 1.0, (1, 2): many}))
    assert found.is_reproduced == is_so and found.here.startswith(f"{many:.2f} times")


@pytest.mark.parametrize("factor, is_so", [(1.05, True), (1.3, False)])
def test_best_speedups_are_compared_with_the_printed_ones(factor, is_so):
    of = {(n, m): value * factor for n, (m, value) in PRINTED["mlp"].items()}
    found = findings.speedups(perceptron(of=of))
    assert found.is_reproduced == is_so
    assert found.here.startswith(f"{1.34 * factor:.2f}, ")
    # Equation (2) with 4 processes and 5 microbatches.
    assert "1.67, 2.50, " in found.why


@pytest.mark.parametrize("best, is_so", [((5, 12), True), ((12, 12), False)])
def test_the_best_number_of_microbatches(best, is_so):
    of = {
        (n, m): speedup(n, m, best[i])
        for i, n in enumerate((2, 16))
        for m in (1, 3, 5, 12, 40)
    }
    found = findings.best_microbatches(perceptron(of=of))
    assert found.is_reproduced == is_so
    assert found.here == f"{best[0]}, {best[1]} on 2, 16"


@pytest.mark.parametrize("many, is_so", [(0.8, True), (1.2, False)])
def test_many_microbatches_on_two_processes(many, is_so):
    of = {(2, 1): 0.95, (2, 5): 1.4, (2, 12): many, (2, 80): 0.5}
    found = findings.two_processes(perceptron(of=of))
    assert found.is_reproduced == is_so and "with 12, 80, 0.95 without" in found.here


@pytest.mark.parametrize("last, is_so", [(0.5, True), (3.0, False)])
def test_more_than_the_best_number_of_microbatches(last, is_so):
    of = {(n, m): speedup(n, m) for n in (2, 8) for m in (3, 12, 20, 40)}
    of |= {(2, 80): last, (8, 80): 0.1}
    found = findings.too_many(perceptron(of=of))
    assert found.is_reproduced == is_so and "80 microbatches on 2, 8" in found.here


@pytest.mark.parametrize("last, is_so", [(0.8, True), (1.2, False)])
def test_processes_without_microbatches(last, is_so):
    of = {(1, 1): 1.0, (2, 1): 0.95, (4, 1): 0.96, (8, 1): last}
    assert findings.without_microbatches(perceptron(of=of)).is_reproduced == is_so


@pytest.mark.parametrize("slower, is_so", [(1.03, True), (1.5, False)])
def test_bandwidths(slower, is_so):
    slow = dict(zip(RATES, (2.0, slower, 1.0)))
    found = findings.bandwidth(
        measured(
            {
                Point("mlp", 500, 1200, 4, m, rate=rate): m / slow[rate]
                for m in (1, 5, 20)
                for rate in RATES
            }
        )
    )
    assert found.is_reproduced == is_so
    assert found.here.startswith(f"1gbit takes {slower:.2f} times as long as 10gbit")
    # 60 samples of 500 numbers with 4 bytes, in 125 MB a second.
    assert "with m = 20 a message takes 1.0 ms at 1gbit" in found.why


@pytest.mark.parametrize("factor, is_so", [(1.0, True), (1.4, False)])
def test_equation_3_on_sixteen_processes(factor, is_so):
    def seconds(m):
        model = PerformanceModel(16, 16.0, 0.01, 0.0)
        return model(m) * (factor if m == 20 else 1.0)

    found = findings.equation_3(
        perceptron(of={(16, m): 1 / seconds(m) for m in MICROBATCHES["mlp"]})
    )
    assert found.is_reproduced == is_so
    if not is_so:
        assert found.why == "the worst of 6 is m = 20"
