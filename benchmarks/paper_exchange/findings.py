"""The findings of Oyama et al. beside those of the runs, computed."""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.common.findings import Finding
from benchmarks.data_parallel.accuracy import paired
from benchmarks.paper_exchange.curves import Curve, Curves
from benchmarks.paper_exchange.experiments import (
    CAFFENET,
    EIGHT_NODES,
    EIGHT_NODES_ONE_LEVEL,
    FLOAT,
    FP8,
    GRADIENT,
    ONE_LEVEL,
    QUICK,
    SLOW,
)
from benchmarks.paper_exchange.look import SHOWN, Look, local_part, normalized
from chainer_kernels import float8

#: Points of accuracy up to which two ways are alike: 8 of 800 test images.
ALIKE = 1.0
#: Decades from the smallest to the largest positive number of fp8.
DECADES = float(np.log10(float8.LARGEST * 2.0**16))
#: Part of the gradients that "most" means.
MOST = 0.9


def findings(curves: Curves, look: Look) -> list[Finding]:
    """Returns all findings, in the order of the figures.

    Args:
        curves: Curves of all experiments.
        look: Weights and gradients during the training of CaffeNet.
    """
    return [
        *_of_gradients(look),
        *_of_conditions(curves, look),
        *_of_shapes(look),
        *_of_levels(curves),
        _of_quantiles(curves[CAFFENET, FP8][0]),
        *_of_googlenet(curves),
    ]


def difference(curves: Curves, task: str, way: str) -> tuple[float, float]:
    """Returns the best accuracy of a way less that of float, and its standard error.

    Both are means over the seeds that both have.
    """
    found, base = curves[task, way], curves[task, FLOAT]
    n = min(len(found), len(base))
    return paired(found[:n], base[:n])


def _points(found: tuple[float, float]) -> str:
    value, error = found
    return f"{value:+.2f} (error {error:.2f})" if error else f"{value:+.2f}"


def _gain(curves: list[Curve]) -> float:
    return statistics.mean(curve.gain for curve in curves)


def _best(curves: list[Curve]) -> float:
    return statistics.mean(curve.best for curve in curves)


def _of_gradients(look: Look) -> list[Finding]:
    decades = {name: d.decades for name, d in look.distributions().items()}
    widest = max(decades, key=decades.get)
    magnitudes = np.abs(
        np.concatenate([g[g != 0].ravel() for g in look.gradients.values()])
    )
    part = float(((magnitudes >= 1e-10) & (magnitudes <= 1)).mean())
    return [
        Finding(
            "Fig. 1: most gradients are between 1e-10 and 1",
            "most",
            f"{part:.1%} of those that are not zero",
            part > MOST,
            f"more than {MOST:.0%} count as most",
        ),
        Finding(
            "Fig. 1: from the 10 % quantile to the largest, each tensor fits into the"
            " range of fp8",
            "9.5 decades",
            f"{decades[widest]:.1f} decades at most ({widest.strip('/')})",
            decades[widest] <= DECADES,
            f"fp8 has {DECADES:.1f} decades",
        ),
    ]


def _of_conditions(curves: Curves, look: Look) -> list[Finding]:
    fp8, gradient = (difference(curves, CAFFENET, way) for way in (FP8, GRADIENT))
    gain = _gain(curves[CAFFENET, FP8])
    all_epsilons = [
        curves[CAFFENET, way][0].best for way in (FP8, "fp8, 1e-4", "fp8, 1e-3")
    ]
    spread = max(all_epsilons) - min(all_epsilons)
    falls = gradient[0] < -ALIKE
    vanish = look.distributions()[SHOWN].vanish["Algorithm 1"]
    return [
        Finding(
            "Fig. 8: fp8 with 1e-5 is as accurate as float: best accuracies",
            "73.25 and 73.75 %: +0.50 points",
            f"{_best(curves[CAFFENET, FLOAT]):.2f} and"
            f" {_best(curves[CAFFENET, FP8]):.2f} %: {_points(fp8)}",
            fp8[0] >= -ALIKE,
            f"up to {ALIKE:g} point counts as alike; Algorithm 1 keeps {gain:.2f} of"
            f" the gradient, so its learning rate is in effect smaller",
        ),
        Finding(
            "Fig. 8: 1e-3, 1e-4 and 1e-5 are alike",
            "all like float",
            f"{spread:.2f} points apart",
            spread <= ALIKE,
            f"up to {ALIKE:g} point counts as alike",
        ),
        Finding(
            "Fig. 8: fp8 of the gradient itself is less accurate than float",
            "-8.25 points",
            _points(gradient),
            falls,
            f"the paper explains it by underflow: here {_underflow(look):.1%} of the"
            f" gradients of {SHOWN.strip('/')} become zero, and {vanish:.1%} of the"
            f" ratios",
        ),
    ]


def _underflow(look: Look) -> float:
    """Returns the part of the shown gradient that becomes zero in fp8 by itself."""
    gradient = look.gradients[SHOWN]
    q = np.quantile(np.abs(gradient), 0.95)
    scaled = gradient * np.float32(float8.LARGEST / q)
    zero = float8.decode(float8.encode(scaled, rounding="truncate")) == 0
    return float((zero & (gradient != 0)).mean())


def _of_shapes(look: Look) -> list[Finding]:
    shown = look.shown()
    deviations = {name: float(normalized(v).std()) for name, v in shown.items()}
    local = {name: local_part(values) for name, values in shown.items()}
    gradient, ratio = deviations["gradient"], deviations["ratio"]
    return [
        Finding(
            "Fig. 9: the ratio of conv2 varies less than its gradient, relative to the"
            " 0.99 quantile",
            "by the picture",
            f"standard deviations {ratio:.3f} and {gradient:.3f}",
            ratio < gradient,
            "computed from the values that the figure shows",
        ),
        Finding(
            "Fig. 10: rows and columns of weights and of gradients have magnitudes of"
            " their own",
            "by the picture",
            f"rows and columns explain {local['weight']:.0%} of the variance of the"
            f" logarithms of weights, and {local['gradient']:.0%} with gradients",
            min(local["weight"], local["gradient"]) > 0.1,
            "more than 10 % of both counts as local",
        ),
        Finding(
            "Fig. 10: the division cancels them",
            "by the picture",
            f"{local['ratio']:.0%} with ratios, {local['gradient']:.0%} with gradients",
            local["ratio"] < local["gradient"],
            "they must explain less of the ratio than of the gradient",
        ),
    ]


def _of_levels(curves: Curves) -> list[Finding]:
    differences = {
        way: difference(curves, CAFFENET, way)[0]
        for way in (ONE_LEVEL, EIGHT_NODES, EIGHT_NODES_ONE_LEVEL)
    }
    gains = {way: _gain(curves[CAFFENET, way]) for way in differences}
    two_levels = curves[CAFFENET, FP8][0].best - curves[CAFFENET, FLOAT][0].best
    fall = differences[EIGHT_NODES_ONE_LEVEL] - differences[EIGHT_NODES]
    return [
        Finding(
            "Fig. 11: on 2 nodes one all-reduce is as accurate as two levels, and as"
            " float",
            "alike",
            f"{differences[ONE_LEVEL]:+.2f} and {two_levels:+.2f} points",
            min(differences[ONE_LEVEL], two_levels) >= -ALIKE,
            f"up to {ALIKE:g} point counts as alike; one all-reduce of 16 keeps"
            f" {gains[ONE_LEVEL]:.2f} of the gradient",
        ),
        Finding(
            "Fig. 11: on 8 nodes one all-reduce is clearly less accurate than two"
            " levels",
            "clearly",
            f"{differences[EIGHT_NODES_ONE_LEVEL]:+.2f} and"
            f" {differences[EIGHT_NODES]:+.2f} points to float",
            fall < -ALIKE,
            f"{ALIKE:g} point less than two levels counts; one all-reduce of 64 keeps"
            f" {gains[EIGHT_NODES_ONE_LEVEL]:.2f} of the gradient, two levels"
            f" {gains[EIGHT_NODES]:.2f}",
        ),
    ]


def _of_quantiles(curve: Curve) -> Finding:
    at_once = np.array(list(curve.quantiles.values()))
    largest = float((at_once.max(axis=0) / at_once.min(axis=0)).max())
    weights = np.array([q for name, q in curve.quantiles.items() if name[-1] == "W"])
    of_weights = float((weights.max(axis=0) / weights.min(axis=0)).max())
    return Finding(
        "Fig. 12: quantiles of tensors differ by several orders of magnitude",
        "up to about 1e6 times",
        f"up to {largest:.2g} times; {of_weights:.2g} among weights",
        largest >= 1e3,
        "1e3 times or more counts: without a scale for each tensor, that much of the"
        " range would be lost",
    )


def _of_googlenet(curves: Curves) -> list[Finding]:
    quick, slow = (difference(curves, task, FP8) for task in (QUICK, SLOW))
    gains = {task: _gain(curves[task, FP8]) for task in (QUICK, SLOW)}

    def best(task: str) -> str:
        return f"{_best(curves[task, FLOAT]):.2f} and {_best(curves[task, FP8]):.2f} %"

    found = [
        Finding(
            "Fig. 13: GoogLeNet quick: fp8 is not less accurate than float",
            "77.75 and 79.75 %: +2.00 points",
            f"{best(QUICK)}: {_points(quick)}",
            quick[0] >= -ALIKE,
            f"up to {ALIKE:g} point counts as alike; Algorithm 1 keeps"
            f" {gains[QUICK]:.2f} of the gradient",
        ),
        Finding(
            "Fig. 13: GoogLeNet slow: fp8 is less accurate than float",
            "83.125 and 80.75 %: -2.375 points",
            f"{best(SLOW)}: {_points(slow)}",
            slow[0] < -ALIKE,
            f"a fall of more than {ALIKE:g} point counts; Algorithm 1 keeps"
            f" {gains[SLOW]:.2f} of the gradient",
        ),
    ]
    float_, fp8 = curves[SLOW, FLOAT][0], curves[SLOW, FP8][0]
    goal = 10 * (min(float_.best, fp8.best) // 10)
    steps = [curve.steps_to(goal) for curve in (float_, fp8)]
    ratio = steps[1] / steps[0]
    found.append(
        Finding(
            "Fig. 14: GoogLeNet slow: fp8 needs more steps to an accuracy",
            f"{2.22 / 1.7:.2f} times as many (2.22 times the speed, 1.7 times less"
            f" time)",
            f"{ratio:.2f} times as many to {goal:.0f} %: {steps[1]} and {steps[0]}",
            ratio > 1,
            "the steps at the first test that reaches the accuracy",
        )
    )
    return found
