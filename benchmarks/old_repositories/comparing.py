"""Losses with kernels and without, and the words for what a program needed."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from benchmarks.old_repositories.program import Program
from benchmarks.old_repositories.rows import STOPPED, Row
from benchmarks.old_repositories.trial import Run, Way

#: Largest difference of losses that rounding explains in a few steps, relative.
ROUNDING = 1e-4
#: How much more than noise in the last bits the kernels may change losses.
FACTOR = 10.0
#: Noise of gradients, as part of the largest number, and of initial parameters, as part
#: of each: the last bit of float32.
LAST_BITS = 2.0**-23
#: Runs with noise, until one explains the difference. One may cross no kink of a ReLU.
DRAWS = 3

UNCHANGED = "unchanged"
BY_DRIVER = "model unchanged, by a driver"
ONE_LINE = "one changed line"


def difference(run: Run, other: Run) -> float:
    """Returns the largest difference of two runs' losses, as part of their size.

    Losses that are much smaller than the run's largest, such as those of a critic
    around zero, are compared as parts of a hundredth of that one. Runs of unequal
    numbers of steps differ infinitely.
    """
    if len(run.losses) != len(other.losses):
        return math.inf
    finite = [abs(loss) for loss in other.losses if math.isfinite(loss)]
    floor = max(finite, default=0.0) / 100
    found = 0.0
    for loss, wanted in zip(run.losses, other.losses):
        if loss == wanted or (math.isnan(loss) and math.isnan(wanted)):
            continue
        size = max(abs(wanted), floor)
        apart = abs(loss - wanted) / size if size else math.inf
        found = max(found, math.inf if math.isnan(apart) else apart)
    return found


def seconds_of_step(run: Run) -> float:
    """Returns the seconds of a step: the mean of the later three quarters.

    A network may be trained in turns of several kinds of steps, so the mean counts.
    """
    spans = [later - earlier for earlier, later in zip(run.times, run.times[1:])]
    return statistics.mean(spans[len(spans) // 4 :]) if spans else math.nan


def help_needed(program: Program, way: Way, numpy: str = "") -> str:
    """Returns what a program ran with, in words."""
    if way.change:
        line = f"{program.change.file}:{program.change.line}"
        return f"{ONE_LINE}, {line}" + (f", {way.modes}" if way.modes else "")
    found = BY_DRIVER if program.is_driver else UNCHANGED
    if way.modes:
        found = f"CHAINER_COMPAT={way.modes}" + ", by a driver" * program.is_driver
    return found + (f", NumPy {numpy}" if numpy else "")


def agreement(apart: float, nudged: float | None) -> str:
    """Returns whether losses agree, in words.

    Args:
        apart: Largest difference with kernels and without.
        nudged: Largest difference of runs without kernels to one that had noise in
            the last bits; None if it was not needed.
    """
    if apart == 0:
        return "equal"
    if apart <= ROUNDING:
        return f"{apart:.0e}"
    if nudged is not None and apart <= FACTOR * nudged:
        return f"{apart:.0e} (last bits alone {nudged:.0e})"
    more = "" if nudged is None else f" ({nudged:.0e})"
    return f"{apart:.0e}, more than last bits alone{more}"


def counts(found: list[tuple[Program, str]]) -> list[str]:
    """Returns lines with the numbers of programs by what they needed.

    Args:
        found: Programs, and the words for what each needed or what stopped it.
    """
    lines = []
    for name, is_old in ("Chainer 1", True), ("Chainer 2 and later", False):
        part = [
            (program, words)
            for program, words in found
            if program.is_chainer_1 == is_old and not program.beyond
        ]
        lines += _counts_of(name, part)
    beyond = Counter(program.beyond for program, _ in found if program.beyond)
    lines += [f"not for a CPU and Python 3: {n} ({why})" for why, n in beyond.items()]
    kinds = {p.kind for p, words in found if Row(p, words).has_run}
    lines.append(f"kinds that ran: {len(kinds)} ({', '.join(sorted(kinds))})")
    return lines


def _counts_of(name: str, part: list[tuple[Program, str]]) -> list[str]:
    unedited = [
        words
        for _, words in part
        if not words.startswith((STOPPED, ONE_LINE)) and "driver" not in words
    ]
    scripts = [(p, words) for p, words in part if not p.is_driver]
    drivers = [words for p, words in part if p.is_driver]
    as_is = sum(words == UNCHANGED for words in unedited)
    share = f" ({len(unedited) / len(scripts):.0%})" if scripts else ""
    ran = sum(not words.startswith(STOPPED) for words in drivers)
    return [
        f"{name}: {len(unedited)} of {len(scripts)} scripts without an edit{share},"
        f" {as_is} of them without any help;"
        f" {ran} of {len(drivers)} models by a driver"
    ]
