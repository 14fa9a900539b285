"""The paper's findings on L, R and thresholds of DRPM, by simulated times.

Condition B with 4 to 8 hosts, with and without initial abilities. An efficiency is the
time of a perfect balance over that of the iterations. Neither checks nor remappings
take time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np

from benchmarks.common.findings import Finding
from benchmarks.heterogeneous.mappings import CONDITIONS, TRUE
from benchmarks.heterogeneous.points import HOSTS
from benchmarks.heterogeneous.simulated import PRINTED, Settings, run

#: Relative noise of the times; iterations of a training; trainings of each case.
NOISE, ITERATIONS, TRAININGS = 0.05, 600, 3
#: Efficiencies are alike up to this relative difference.
ALIKE = 0.05


def efficiency(settings: Settings, is_told: bool, hosts: int) -> float:
    """Returns the mean efficiency of some trainings.

    Args:
        settings: Settings of DRPM.
        is_told: Whether the paper's assumed abilities are given.
        hosts: Number of hosts.
    """
    true = np.array(TRUE["B"][:hosts])
    told = CONDITIONS["B"][:hosts] if is_told else None
    seconds = [
        check.seconds
        for seed in range(TRAININGS)
        for check in run(
            lambda i: true,
            told,
            ITERATIONS // settings.every,
            settings._replace(noise=NOISE),
            np.random.RandomState(seed),
        )
    ]
    return TRAININGS * ITERATIONS / sum(seconds)


def compare(rows: Mapping[str, Settings], is_told: bool | None = None) -> list[float]:
    """Returns the mean efficiency of each setting, over all numbers of hosts.

    Args:
        rows: Settings by name.
        is_told: Whether abilities are given; ``None`` for the mean of both.
    """
    ways = (True, False) if is_told is None else (is_told,)
    return [
        statistics.mean(efficiency(row, way, n) for way in ways for n in HOSTS)
        for row in rows.values()
    ]


def findings() -> list[Finding]:
    """Returns the findings of section 7.3 on parameters."""
    return [_thresholds(), _last(), _every()]


def _thresholds() -> Finding:
    rows = {
        f"{whole}, {line}": PRINTED._replace(whole=whole, line=line)
        for whole, line in ((0.4, 0.9), (0.3, 0.8), (0.4, 0.8))
    }
    return _best_of_alike(
        "Fig. 13: thresholds 0.4 and 0.8 are the best, others nearly as good",
        rows,
        "simulated: remappings take no time, so more of them do no harm",
    )


def _last() -> Finding:
    rows = {f"L = {last}": PRINTED._replace(last=last) for last in (3, 8, 6)}
    return _best_of_alike(
        "L = 6 is mostly the best, 3 and 8 nearly as good",
        rows,
        "simulated: abilities do not change, so more iterations only reduce noise",
    )


def _best_of_alike(finding: str, rows: Mapping[str, Settings], why: str) -> Finding:
    """Returns a finding by which the last row is the best of similar ones."""
    values = compare(rows)
    is_alike = min(values) >= (1 - ALIKE) * max(values)
    is_best = values[-1] == max(values)
    verdict = {(True, True): True, (False, False): False}.get((is_alike, is_best))
    return Finding(finding, "not printed", _named(rows, values), verdict, why)


def _every() -> Finding:
    rows = {f"R = {every}": PRINTED._replace(every=every) for every in (10, 20, 30)}
    values = compare(rows, is_told=False)
    others_are_alike = abs(values[1] / values[2] - 1) <= ALIKE
    is_lower = values[0] < min(values[1:])
    verdict = {(True, True): True, (False, False): False}
    return Finding(
        "Without initial abilities R = 10 is slightly worse, 20 and 30 are alike",
        "not printed",
        _named(rows, values),
        verdict.get((others_are_alike, is_lower)),
        "simulated: checks take no time, which is the paper's reason",
    )


def _named(rows: Mapping[str, Settings], values: list[float]) -> str:
    return "; ".join(f"{name}: {value:.3f}" for name, value in zip(rows, values))
