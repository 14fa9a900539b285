"""Samples as if they had been measured."""

from benchmarks.paper_tables.claim import Measured
from benchmarks.paper_tables.rows import rows
from benchmarks.paper_tables.samples import Sample


def sample(point, **values):
    """Returns a sample of a point, of 3 seconds if nothing else is said."""
    fields = {
        "round": 0,
        "seconds": 3.0,
        "cuts": list(range(0, 5, 4 // point.hosts or 1)),
        "machine": "a machine",
        "load": 0.5,
        "date": "today",
        "stolen": 0.0,
        "share": point.on(1.6).share,
    }
    return Sample(point, **{**fields, **values})


def measured(speedups, cuts=None):
    """Returns rows of points, with the undivided step of 60 seconds.

    Args:
        speedups: Speed-up of each point.
        cuts: Positions of the cuts by number of hosts, where they matter.
    """
    samples = {
        point: [sample(point, seconds=60.0 / speedup, **_cuts(point, cuts or {}))]
        for point, speedup in speedups.items()
    }
    for point in list(samples):
        samples[point.serial] = [sample(point.serial, seconds=60.0)]
    return Measured(rows(samples, speedups).values())


def _cuts(point, cuts):
    return {"cuts": cuts[point.hosts]} if point.hosts in cuts else {}
