"""Findings of the paper's sections 5.1, 5.2 and 6, on the perceptron of 32 layers."""

from __future__ import annotations

import numpy as np

from benchmarks.common.hosts import Hosts
from benchmarks.paper_tables.claim import (
    TOLERANCE,
    Claim,
    Measured,
    Result,
    are_close,
    ideal,
    listed,
    never_rises,
)
from benchmarks.paper_tables.points import (
    PRINTED,
    RATES,
)

MODEL = "mlp"
#: From so many microbatches on two processes are slow in the paper.
SLOW = 12
NO_NUMBER = "no number"


def one_process(measured: Measured) -> Result | None:
    """Microbatches on one process."""
    found = measured.usual(MODEL).of(hosts=1).by("microbatches")
    if 1 not in found or len(found) < 2:
        return None
    whole, *parts = (each.fastest for each in found.values())
    slowest = min(parts, key=lambda row: row.speedup)
    return Result(
        f"{listed(row.speedup for row in parts)} times, {whole.speedup:.2f} without",
        all(row.speedup < whole.speedup for row in parts),
        f"{slowest.point.microbatches} microbatches take"
        f" {slowest.step / whole.step:.2f} times as long as 1",
    )


def speedups(measured: Measured) -> Result | None:
    """The best speed-up of each number of processes."""
    found = measured.usual(MODEL).by("hosts")
    best = {n: found[n].fastest for n in PRINTED[MODEL] if n in found}
    if not best:
        return None
    printed = {n: PRINTED[MODEL][n] for n in best}
    here = [row.speedup for row in best.values()]
    reached = [row.speedup / ideal(n, row.point.turns) for n, row in best.items()]
    in_paper = [speedup / ideal(n, m) for n, (m, speedup) in printed.items()]
    return Result(
        f"{listed(here)} on {listed(best, 'd')}",
        are_close(here, [speedup for _, speedup in printed.values()]),
        f"equation (2) allows {listed(ideal(n, m) for n, (m, _) in printed.items())}"
        f" with the paper's microbatches; the paper reaches {listed(in_paper, '.0%')},"
        f" here it is {listed(reached, '.0%')} with the best ones",
    )


def best_microbatches(measured: Measured) -> Result | None:
    """The best number of microbatches of each number of processes."""
    found = measured.usual(MODEL).by("hosts")
    found = {n: found[n] for n in PRINTED[MODEL] if n in found}
    models = {n: each.equation() for n, each in found.items()}
    if len(found) < 2 or None in models.values():
        return None
    points = [each.fastest.point for each in found.values()]
    best = [point.microbatches for point in points]
    expected = [models[point.hosts].best_m(at_most=point.batch) for point in points]
    return Result(
        f"{listed(best, 'd')} on {listed(found, 'd')}",
        best == sorted(best) and best[0] < best[-1],
        f"equation (3) gives {listed(expected, 'd')}",
    )


def two_processes(measured: Measured) -> Result | None:
    """Many microbatches on two processes."""
    found = measured.usual(MODEL).of(hosts=2).by("microbatches")
    many = {m: each.fastest for m, each in found.items() if m >= SLOW}
    if 1 not in found or not many:
        return None
    whole = found[1].fastest
    return Result(
        f"{listed(row.speedup for row in many.values())} times with"
        f" {listed(many, 'd')}, {whole.speedup:.2f} without",
        all(row.speedup < whole.speedup for row in many.values()),
        f"{max(many)} microbatches take {max(r.step for r in many.values()):.1f} s, the"
        f" whole minibatch {whole.step:.1f} s",
    )


def too_many(measured: Measured) -> Result | None:
    """More microbatches than the best number."""
    found = measured.usual(MODEL).by("hosts")
    series = {n: each for n, each in found.items() if n > 1}
    models = {n: each.equation() for n, each in series.items()}
    if not series or None in models.values():
        return None
    most = {n: [*each.by("microbatches").values()][-1] for n, each in series.items()}
    parts = [
        most[n].fastest.speedup / each.fastest.speedup for n, each in series.items()
    ]
    numbers = sorted({each.fastest.point.microbatches for each in most.values()})
    starts = listed((1e3 * model.t_0 for model in models.values()), ".1f")
    return Result(
        f"{listed(parts, '.0%')} of the best speed-up with {listed(numbers, 'd')}"
        f" microbatches on {listed(series, 'd')}",
        max(parts) < 1,
        "by equation (3), which counts slower small products as well, a message starts"
        f" in {starts} ms",
    )


def without_microbatches(measured: Measured) -> Result | None:
    """Processes without microbatches."""
    found = measured.usual(MODEL).of(microbatches=1).by("hosts")
    rows = {n: each.fastest for n, each in found.items()}
    if len(rows) < 3:
        return None
    here = [row.speedup for row in rows.values()]
    return Result(
        f"{listed(here)} times on {listed(rows, 'd')}",
        here[-1] < here[0] and never_rises(here),
        f"the slowest of them takes {here[0] / min(here):.2f} times as long as"
        f" {min(rows)}",
    )


def bandwidth(measured: Measured) -> Result | None:
    """Links of other bandwidths."""
    found = measured.of(model=MODEL, hosts=4).by("rate")
    if not set(RATES) <= set(found):
        return None
    size = found[RATES[0]].fastest.point.size
    steps = {
        rate: {row.point.microbatches: row.step for row in found[rate].of(size=size)}
        for rate in RATES
    }
    common = sorted(set.intersection(*map(set, steps.values())))
    slow, usual, fast = (
        [steps[rate][m] / steps[RATES[-1]][m] for m in common] for rate in RATES
    )
    row = found[RATES[1]].of(size=size).fastest
    point = row.point
    seconds = point.samples * point.size * 4 / Hosts(1, 1.0, point.rate).bandwidth
    turn = row.step / (point.turns + point.hosts - 1)
    return Result(
        f"{RATES[1]} takes {np.median(usual):.2f} times as long as {RATES[2]},"
        f" {RATES[0]} {np.median(slow):.2f} times",
        are_close([float(np.median(usual))], [1.0]),
        f"with m = {point.microbatches} a message takes {1e3 * seconds:.1f} ms at"
        f" {RATES[1]}, a turn {1e3 * turn:.0f} ms",
    )


def equation_3(measured: Measured) -> Result | None:
    """Equation (3) on 16 processes."""
    rows = [row for row in measured.usual(MODEL).of(hosts=16) if row.equation]
    errors = [row.error_of_equation for row in rows if not row.is_fitted]
    if not errors:
        return None
    worst = max((row for row in rows), key=lambda row: abs(row.error_of_equation))
    return Result(
        f"off by {np.median(np.abs(errors)):.1%} in the median, by"
        f" {np.max(np.abs(errors)):.1%} at most",
        float(np.max(np.abs(errors))) <= TOLERANCE,
        f"the worst of {len(errors)} is m = {worst.point.microbatches}",
    )


def _printed(form: str, position: int) -> str:
    numbers = PRINTED[MODEL]
    found = listed((each[position] for each in numbers.values()), form)
    return f"{found} on {listed(numbers, 'd')}"


CLAIMS = (
    Claim(
        "5.1, Fig. 7", "one process is slower with microbatches", NO_NUMBER, one_process
    ),
    Claim("5.1, Fig. 7", "best speed-ups", _printed(".2f", 1), speedups),
    Claim(
        "5.1, Fig. 7",
        "the best number of microbatches grows with the processes",
        _printed("d", 0),
        best_microbatches,
    ),
    Claim(
        "5.1, Fig. 7",
        f"2 processes with {SLOW} microbatches or more are slower than without",
        "below 1",
        two_processes,
    ),
    Claim(
        "5.1, Fig. 7",
        "more microbatches than the best number are slower",
        NO_NUMBER,
        too_many,
    ),
    Claim(
        "5.1, Fig. 7",
        "without microbatches more processes are slower",
        NO_NUMBER,
        without_microbatches,
    ),
    Claim("5.2, Fig. 8", "bandwidth makes hardly any difference", NO_NUMBER, bandwidth),
    Claim(
        "6, Fig. 12",
        "equation (3), fitted to 3, 12 and 40 microbatches, is close on 16 processes",
        NO_NUMBER,
        equation_3,
    ),
)
