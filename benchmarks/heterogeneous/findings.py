"""The findings of section 7.3 of Ozawa et al., beside those of measured points."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.common.findings import Finding
from benchmarks.heterogeneous.mappings import TRUE
from benchmarks.heterogeneous.measured import METHODS, Measured

METHOD_1, METHOD_2, SRPM, GIVEN, UNKNOWN = METHODS
#: Efficiencies and times are alike up to this relative difference, and abilities.
ALIKE, ABILITIES_ALIKE = 0.05, 0.1
#: Number of the check from which on nothing moves in Fig. 12.
SETTLED = 3
FIGURE_ONLY = "only in Fig. 11"


def findings(measured: Sequence[Measured]) -> list[Finding]:
    """Returns each finding of which the points are measured."""
    functions: tuple[Callable[[Sequence[Measured]], Finding | None], ...] = (
        _method_1_is_low,
        _srpm_is_above_method_2,
        _method_2_drops,
        _given_is_best,
        _unknown_is_close,
        _estimates,
        _first_interval,
        _settles,
        _both_end_alike,
    )
    return [each for each in (f(measured) for f in functions) if each is not None]


def _method_1_is_low(measured: Sequence[Measured]) -> Finding:
    ratios = [each.efficiency(SRPM) / each.efficiency(METHOD_1) for each in measured]
    others = [method for method in METHODS if method != METHOD_1]
    fails = [m for m in measured if any(_is_above(m, METHOD_1, o) for o in others)]
    return Finding(
        "Equal parts (method 1) are very inefficient",
        FIGURE_ONLY,
        f"SRPM is {_spread(ratios)} times as efficient",
        _verdict(fails, measured),
        _why(fails, "the fast hosts wait for the slowest one", METHOD_1, others),
    )


def _srpm_is_above_method_2(measured: Sequence[Measured]) -> Finding:
    ratios = [each.efficiency(SRPM) / each.efficiency(METHOD_2) for each in measured]
    fails = [each for each in measured if not _is_above(each, SRPM, METHOD_2)]
    return Finding(
        "SRPM is above method 2 with its best number of groups",
        FIGURE_ONLY,
        f"{_spread(ratios)} times as efficient",
        _verdict(fails, measured),
        _why(fails, "areas follow abilities exactly", METHOD_2, [SRPM]),
    )


def _method_2_drops(measured: Sequence[Measured]) -> Finding | None:
    """Compares 5 and 7 hosts with one host fewer and one more."""
    by_place = {(m.point.condition, m.point.hosts): m for m in measured}
    found, srpm, fails = [], [], []
    for (condition, hosts), each in by_place.items():
        around = [by_place.get((condition, hosts + i)) for i in (-1, 1)]
        if hosts not in (5, 7) or None in around:
            continue
        for method, ratios in ((METHOD_2, found), (SRPM, srpm)):
            mean = statistics.mean(m.efficiency(method) for m in around if m)
            ratios.append(each.efficiency(method) / mean)
        if found[-1] >= min(1.0, srpm[-1]):
            fails.append(each)
    if not found:
        return None
    why = "only 1 or N groups are possible"
    if fails:
        why += f"; not at {_places(fails)}, where one of these is as good as others"
    return Finding(
        "Method 2 drops with 5 and 7 processors, and SRPM does not",
        FIGURE_ONLY,
        f"of the mean of one host fewer and one more: method 2 {_spread(found)}, SRPM"
        f" {_spread(srpm)}",
        _verdict(fails, found),
        why,
    )


def _given_is_best(measured: Sequence[Measured]) -> Finding:
    of_best = [
        each.efficiency(GIVEN) / max(map(each.efficiency, METHODS)) for each in measured
    ]
    fails = [m for m, part in zip(measured, of_best) if part < 1 - ALIKE]
    ratios = [each.efficiency(GIVEN) / each.efficiency(SRPM) for each in measured]
    n_best, n = of_best.count(1.0), len(measured)
    return Finding(
        "DRPM with initial abilities is the best in most cases",
        FIGURE_ONLY,
        f"best at {n_best} of {n} points, within {ALIKE:.0%} of the best at"
        f" {n - len(fails)}; {_spread(ratios)} times as efficient as SRPM",
        True if 2 * n_best > n else None if 2 * len(fails) < n else False,
        _why(fails, "the told abilities are not those of the hosts", None, [GIVEN]),
    )


def _unknown_is_close(measured: Sequence[Measured]) -> Finding:
    ratios = [each.efficiency(UNKNOWN) / each.efficiency(GIVEN) for each in measured]
    whole = [
        each.content["learning"][GIVEN] / each.content["learning"][UNKNOWN]
        for each in measured
    ]
    fails = [m for m, r in zip(measured, ratios) if abs(r - 1) > ALIKE]
    why = "both have measured the same hosts"
    if fails:
        why += f"; more than {ALIKE:.0%} apart at {_places(fails)}"
    return Finding(
        "Without initial abilities DRPM is only slightly different",
        "slight",
        f"{_spread(ratios)} of the efficiency with them; {_spread(whole)} in the"
        " iterations until then",
        _verdict(fails, measured),
        why,
    )


def _estimates(measured: Sequence[Measured]) -> Finding | None:
    """Compares the abilities of the last check that DRPM began without any."""
    each = _find(measured, "B", 8)
    if each is None:
        return None
    found = each.checks[UNKNOWN][-1]["abilities"]
    largest = max(found)
    here = [ability / largest for ability in found]
    off = max(abs(a / b - 1) for a, b in zip(here, each.point.true))
    return Finding(
        "Estimated abilities in condition B (7.3): where 0.63 is assumed, about 0.5",
        _list(TRUE["B"]),
        _list(here),
        off <= ABILITIES_ALIKE,
        f"hosts have shares of {_list(each.point.true)}; off by {off:.0%} at most",
    )


def _first_interval(measured: Sequence[Measured]) -> Finding | None:
    each = _find(measured, "B", 4)
    if each is None:
        return None
    given, unknown = (each.checks[method][0]["seconds"] for method in (GIVEN, UNKNOWN))
    return Finding(
        "Fig. 12: until the first check, initial abilities save time",
        "only in Fig. 12",
        f"{given:.1f} s with them, {unknown:.1f} s without",
        given < unknown,
        "without them all begin with equal parts",
    )


def _settles(measured: Sequence[Measured]) -> Finding | None:
    each = _find(measured, "B", 4)
    if each is None:
        return None
    actions = {
        method: [check["action"] or "-" for check in checks]
        for method, checks in each.checks.items()
    }
    if min(map(len, actions.values())) < SETTLED:
        return None
    late = [a for of in actions.values() for a in of[SETTLED - 1 :] if a != "-"]
    why = "abilities do not change meanwhile"
    if late:
        last = [c for checks in each.checks.values() for c in checks[SETTLED - 1 :]]
        ratios = [check["ratio"] for check in last]
        why += (
            f"; times differ by noise: shortest over longest is {min(ratios):.2f}, and"
            " lines move below 0.80"
        )
    return Finding(
        "Fig. 12: from the third check on nothing moves",
        "third check",
        "; ".join(f"{m}: {' '.join(found)}" for m, found in actions.items()),
        not late,
        why,
    )


def _both_end_alike(measured: Sequence[Measured]) -> Finding | None:
    each = _find(measured, "B", 4)
    if each is None or len(each.checks[GIVEN]) < SETTLED:
        return None
    given, unknown = (each.checks[method][-1]["seconds"] for method in (GIVEN, UNKNOWN))
    return Finding(
        "Fig. 12: after one or two remappings both take the same time",
        "only in Fig. 12",
        f"{given:.1f} s with initial abilities, {unknown:.1f} s without",
        abs(given / unknown - 1) <= ABILITIES_ALIKE,
        f"the last interval before check {len(each.checks[GIVEN])}",
    )


def _find(measured: Sequence[Measured], condition: str, hosts: int) -> Measured | None:
    place = condition, hosts
    found = [m for m in measured if (m.point.condition, m.point.hosts) == place]
    return found[0] if found else None


def _is_above(each: Measured, method: str, other: str) -> bool:
    return each.efficiency(method) > each.efficiency(other)


def _verdict(fails: Sequence[object], of: Sequence[object]) -> bool | None:
    """Returns whether a finding holds everywhere, nowhere, or in part."""
    if not fails:
        return True
    return False if len(fails) == len(of) else None


def _why(
    fails: Sequence[Measured], reason: str, better: str | None, worse: Sequence[str]
) -> str:
    """Returns the reason, and why it does not decide where a finding fails.

    Args:
        fails: Points where another method is better than in the paper.
        reason: Reason of the finding.
        better: Method that should not be better there; ``None`` for the best one.
        worse: Methods that should be better than that one.
    """
    if not fails:
        return reason
    overlapping, expected, others = [], [], []
    for each in fails:
        best = better or max(METHODS, key=each.efficiency)
        low, _ = each.range(best)
        loser = min(worse, key=each.efficiency)
        _, high = each.range(loser)
        if low <= high:
            overlapping.append(each)
        elif each.simulated(best) >= each.simulated(loser):
            expected.append(each)
        else:
            others.append(each)
    parts = [
        f"{text} at {_places(points)}"
        for text, points in (
            ("ranges of the rounds overlap", overlapping),
            ("simulated otherwise as well", expected),
            ("simulated as in the paper, measured otherwise", others),
        )
        if points
    ]
    return "; ".join([reason, *parts])


def _places(measured: Sequence[Measured]) -> str:
    """Names points, such as ``A 4, B 5``."""
    return ", ".join(f"{m.point.condition} {m.point.hosts}" for m in measured)


def _spread(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.2f} ({low:.2f}..{high:.2f})"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
