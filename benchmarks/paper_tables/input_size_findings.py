"""Findings of the paper's section 5.3: the perceptron with other widths."""

from __future__ import annotations

import numpy as np

from benchmarks.paper_tables.claim import (
    TOLERANCE,
    Claim,
    Measured,
    Result,
    listed,
    over_single,
)
from benchmarks.paper_tables.points import PAPER_SIZES, SIZES_MICROBATCHES

MODEL = "mlp"
#: Samples of the microbatch that the section is about, and the hosts of Fig. 9 to 11.
SAMPLES, HOSTS = 120, (4, 8, 16)


def by_size(measured: Measured) -> dict[int, dict[int, dict[int, float]]] | None:
    """Returns speed-ups over one microbatch, by hosts, width, samples of a microbatch.

    ``None`` unless there are all hosts of Fig. 9 to 11, with all of the paper's sizes.
    """
    found = {}
    for hosts in HOSTS:
        sizes = found[hosts] = {}
        for size, each in measured.of(model=MODEL, hosts=hosts).by("size").items():
            by_samples = {
                row.point.samples: over_single(row)
                for row in each
                if row.single and row.point.microbatches in SIZES_MICROBATCHES[1:]
            }
            if len(by_samples) == len(SIZES_MICROBATCHES) - 1:
                sizes[size] = by_samples
        if len(sizes) != len(PAPER_SIZES):
            return None
    return found


def small_sizes(measured: Measured) -> Result | None:
    """Narrow layers."""
    found = by_size(measured)
    if found is None:
        return None
    best = {n: [max(s.values()) for s in found[n].values()][:3] for n in found}
    least = {n: [min(s.values()) for s in found[n].values()][0] for n in found}
    return Result(
        "; ".join(f"{listed(each)} on {n}" for n, each in best.items()),
        all(max(each[:2]) < each[2] for each in best.values()),
        f"with the least size the slowest microbatches reach {listed(least.values())}",
    )


def usual_samples(measured: Measured) -> Result | None:
    """Microbatches of 120 samples, wide layers."""
    found = by_size(measured)
    if found is None:
        return None
    sizes = {n: list(found[n].values())[2:] for n in HOSTS[1:]}
    best = {n: [max(s, key=s.get) for s in each] for n, each in sizes.items()}
    parts = [s[SAMPLES] / max(s.values()) for each in sizes.values() for s in each]
    return Result(
        "; ".join(f"{listed(each, 'd')} samples on {n}" for n, each in best.items()),
        all(set(each) == {SAMPLES} for each in best.values()),
        f"{SAMPLES} samples reach {min(parts):.0%} of the fastest at least",
    )


def usual_samples_when_small(measured: Measured) -> Result | None:
    """Microbatches of 120 samples, narrow layers."""
    found = by_size(measured)
    if found is None:
        return None
    sizes = {n: list(found[n].values())[:2] for n in HOSTS[1:]}
    ranks = {
        n: [sorted(s.values()).index(s[SAMPLES]) + 1 for s in each]
        for n, each in sizes.items()
    }
    slowest = [min(s, key=s.get) for each in sizes.values() for s in each]
    return Result(
        "; ".join(f"place {listed(each, 'd')} on {n}" for n, each in ranks.items()),
        all(set(each) == {2} for each in ranks.values()),
        f"the slowest have {listed(slowest, 'd')} samples",
    )


def largest_size(measured: Measured) -> Result | None:
    """The widest layers."""
    found = by_size(measured)
    if found is None:
        return None
    parts = {}
    for n, sizes in found.items():
        wide, widest = list(sizes.values())[-2:]
        parts[n] = [widest[samples] / wide[samples] for samples in wide]
    smaller = {n: sum(part < 1 for part in each) for n, each in parts.items()}
    *few, most = HOSTS
    change = abs(float(np.median(parts[most])) - 1)
    return Result(
        "; ".join(f"{smaller[n]} of {len(parts[n])} smaller on {n}" for n in parts),
        all(2 * smaller[n] > len(parts[n]) for n in few) and change <= TOLERANCE,
        "the speed-ups change by a factor of"
        f" {listed(np.median(each) for each in parts.values())} in the median",
    )


CLAIMS = (
    Claim(
        "5.3, Fig. 9 to 11",
        f"speed-ups fall below an input size of {PAPER_SIZES[2]:,}",
        "no number",
        small_sizes,
    ),
    Claim(
        "5.3, Fig. 10 and 11",
        f"from {PAPER_SIZES[2]:,} on microbatches of {SAMPLES} samples are the fastest",
        f"{SAMPLES} samples",
        usual_samples,
    ),
    Claim(
        "5.3, Fig. 10 and 11",
        f"up to {PAPER_SIZES[1]:,} they are the second slowest",
        "place 2 from the slowest",
        usual_samples_when_small,
    ),
    Claim(
        "5.3, Fig. 9 to 11",
        f"at {PAPER_SIZES[4]:,} most speed-ups are smaller on 4 and 8 processes, and"
        " hardly change on 16",
        "no number",
        largest_size,
    ),
)
