"""Findings follow from curves and gradients, in both directions."""

import numpy as np
import pytest

from benchmarks.paper_exchange import findings as module
from benchmarks.paper_exchange.curves import Curve
from benchmarks.paper_exchange.experiments import (
    CAFFENET,
    EIGHT_NODES_ONE_LEVEL,
    EXPERIMENTS,
    FLOAT,
    FP8,
    GRADIENT,
    QUICK,
    SLOW,
    Job,
)
from benchmarks.paper_exchange.findings import difference, findings
from benchmarks.paper_exchange.look import SHOWN, Look

QUANTILES = {"/conv1/W": [0.1, 0.2], "/conv1/b": [3e4, 10.0], "/fc8/W": [0.2, 0.2]}


def curve(task, way, seed, best, first=60.0, gain=0.7):
    accuracies = [first, (first + best) / 2, best, best - 1]
    return Curve(Job(task, way, seed), 120, accuracies, gain, 100, QUANTILES)


def curves(**best):
    """Returns curves of all experiments; best accuracies are 90 if not given."""
    return {
        (task, way): [
            curve(task, way, seed, best.get(f"{task}, {way}", 90.0))
            for seed in range(2 if experiment.has_seeds else 1)
        ]
        for (task, way), experiment in EXPERIMENTS.items()
    }


def look():
    random = np.random.RandomState(0)
    weights = (random.standard_normal((8, 5, 3, 3)) * 0.1).astype("f")
    noise = random.standard_normal(weights.shape) * np.abs(weights)
    gradient = (noise * 10.0 ** random.normal(0, 1, (8, 1, 1, 1))).astype("f")
    return Look(300, {SHOWN: weights}, {SHOWN: gradient})


def verdicts(found):
    return {each.finding: each.is_reproduced for each in found}


def test_differences_are_over_the_seeds_that_both_have():
    found = curves()
    found[CAFFENET, FP8] = [
        curve(CAFFENET, FP8, 0, 91.0),
        curve(CAFFENET, FP8, 1, 93.0),
    ]
    assert difference(found, CAFFENET, FP8) == (2, 1)
    assert difference(found, CAFFENET, "fp8, 1e-3") == (0, 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{CAFFENET}, {GRADIENT}", "the gradient itself is less accurate"),
        (f"{CAFFENET}, {EIGHT_NODES_ONE_LEVEL}", "on 8 nodes one all-reduce"),
        (f"{SLOW}, {FP8}", "slow: fp8 is less accurate"),
    ],
)
def test_what_falls_in_the_paper_must_fall_here(name, words):
    for best, expected in ((90.0, False), (89.5, False), (85.0, True)):
        found = verdicts(findings(curves(**{name: best}), look()))
        assert [v for k, v in found.items() if words in k] == [expected]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{CAFFENET}, {FP8}", "fp8 with 1e-5 is as accurate"),
        (f"{CAFFENET}, fp8, 1e-3", "1e-3, 1e-4 and 1e-5 are alike"),
        (f"{CAFFENET}, fp8, all-reduce", "on 2 nodes one all-reduce"),
        (f"{QUICK}, {FP8}", "quick: fp8 is not less accurate"),
    ],
)
def test_what_is_alike_in_the_paper_must_be_alike_here(name, words):
    for best, expected in ((90.0, True), (89.5, True), (85.0, False)):
        found = verdicts(findings(curves(**{name: best}), look()))
        assert [v for k, v in found.items() if words in k] == [expected]


def test_accuracies_quantiles_and_gains_are_shown():
    found = {
        each.finding: each
        for each in findings(curves(**{f"{CAFFENET}, {FLOAT}": 92.0}), look())
    }
    alike = found["Fig. 8: fp8 with 1e-5 is as accurate as float: best accuracies"]
    assert alike.here == "92.00 and 90.00 %: -2.00" and "keeps 0.70" in alike.why
    quantiles = found[
        "Fig. 12: quantiles of tensors differ by several orders of magnitude"
    ]
    assert quantiles.here == "up to 3e+05 times; 2 among weights"
    assert quantiles.is_reproduced
    gradients = found["Fig. 1: most gradients are between 1e-10 and 1"]
    assert gradients.is_reproduced and gradients.here.startswith("9")


def test_steps_to_an_accuracy():
    found = curves()
    slower = found[SLOW, FP8][0]
    found[SLOW, FP8] = [slower._replace(accuracies=[60, 70, 70, 90])]
    last = findings(found, look())[-1]
    assert last.here == "1.12 times as many to 90 %: 180 and 160"
    assert last.is_reproduced


def test_the_shapes_of_ratios():
    narrow = look()
    found = {each.finding: each for each in findings(curves(), narrow)}
    cancelled = found["Fig. 10: the division cancels them"]
    local = found[
        "Fig. 10: rows and columns of weights and of gradients have magnitudes of"
        " their own"
    ]
    assert "with gradients" in cancelled.here and "with gradients" in local.here
    # Ratios that are wider than gradients do not reproduce Fig. 9.
    weights = narrow.weights[SHOWN]
    wide = Look(300, {SHOWN: weights}, {SHOWN: np.ones_like(weights)})
    names = [name for name in verdicts(findings(curves(), wide)) if "varies" in name]
    assert not verdicts(findings(curves(), wide))[names[0]]


def test_the_thresholds_are_those_of_the_page():
    assert module.ALIKE == 8 / 800 * 100
    assert pytest.approx(9.57, abs=0.01) == module.DECADES
