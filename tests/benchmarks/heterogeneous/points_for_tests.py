"""Points with the efficiencies that a test wants."""

from benchmarks.heterogeneous.measured import METHODS, Measured
from benchmarks.heterogeneous.points import Point

METHOD_1, METHOD_2, SRPM, GIVEN, UNKNOWN = METHODS
#: Efficiencies in the order of the paper's figure.
AS_IN_THE_PAPER = {METHOD_1: 0.4, METHOD_2: 0.7, SRPM: 0.8, GIVEN: 0.9, UNKNOWN: 0.88}


def check(action, seconds=2.0, ratio=0.9, abilities=()):
    return {
        "action": action,
        "seconds": seconds,
        "ratio": ratio,
        "abilities": list(abilities),
    }


def measured(condition, hosts, wanted=None, noise=0.0, simulated=None, **options):
    """Returns a point with the efficiencies of methods, in three rounds.

    Other numbers of groups than the largest are half as efficient.
    """
    point = Point(condition, hosts, **options)
    wanted = {**AS_IN_THE_PAPER, **(wanted or {})}
    simulated = {**wanted, **(simulated or {})}
    ways, seconds = {}, {}
    for method, prefix in METHODS.items():
        names = [name for name in point.ways if name.startswith(prefix)]
        for name in names:
            part = 1.0 if name == names[-1] else 0.5
            ways[name] = [
                1 / (wanted[method] * part * factor)
                for factor in (1 - noise, 1.0, 1 + noise)
            ]
            seconds[name] = 1 / (simulated[method] * part)
    scale = sum(point.true)
    actions = {GIVEN: ["line", "line", None], UNKNOWN: ["whole", "line", None]}
    content = {
        "machine": "a machine",
        "load": 0.1,
        "date": "2026-01-01 12:00",
        # Together they would take a second at best.
        "alone": [[scale / ability for ability in point.true]] * 3,
        "off": [0.01, 0.02, 0.03],
        "ways": ways,
        "learning": {GIVEN: 1.2, UNKNOWN: 1.5},
        "checks": {
            method: [
                check(action, 2.0 + (method == UNKNOWN and i == 0), 0.9, point.true)
                for i, action in enumerate(each)
            ]
            for method, each in actions.items()
        },
        "simulated": seconds,
    }
    return Measured(point, content)


def everything(**options):
    """Returns all points of the figure; method 2 is worse with 5 and 7 hosts."""
    return [
        measured(
            condition, hosts, {METHOD_2: 0.5 if hosts in (5, 7) else 0.7}, **options
        )
        for condition in "AB"
        for hosts in (4, 5, 6, 7, 8)
    ]
