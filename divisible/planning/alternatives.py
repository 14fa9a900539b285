"""The plans that a search did not choose, and why they lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from divisible.planning.cut_plan import CutPlan, SimulatedStep, UncutPlan
from divisible.planning.moves import SAME
from divisible.planning.plan import Alternative
from divisible.planning.units import format_seconds
from divisible.planning.workload import Workload

# Number of the alternatives that are kept, besides the best one of every kind.
_KEPT = 10
# Text for plans that are slower by no more than the scatter of the profiles.
_WITHIN = "within the scatter of the timings"


class RefusedPlan(NamedTuple):
    """A plan that does not fit into memory, and why."""

    uncut: UncutPlan
    reason: str


def alternatives(
    workload: Workload,
    best: CutPlan,
    fitting: Sequence[CutPlan],
    refused: Sequence[RefusedPlan],
    scatter: float | None,
) -> tuple[Alternative, ...]:
    """Returns the best other plans, and the best one of every kind, with reasons.

    Args:
        workload: The minibatch on its machine.
        best: The plan that was chosen, one of ``fitting``.
        fitting: The plans that fit, some of them simulated.
        refused: The plans that do not fit.
        scatter: How far timings lie from their medians; ``None`` if this is not known.
    """
    simulated = [cut for cut in fitting if cut.step is not None and cut is not best]
    bounded = [cut for cut in fitting if cut.step is None]
    others = [
        *sorted(simulated, key=lambda cut: cut.step.seconds),
        *sorted(bounded, key=lambda cut: cut.bound),
    ]
    kept, kinds = [], {*_kinds(best.uncut)}
    for other in (*others, *refused):
        new = set(_kinds(other.uncut)) - kinds
        if len(kept) >= _KEPT and not new:
            continue
        kinds |= new
        if isinstance(other, RefusedPlan):
            kept.append(Alternative(str(other.uncut), np.inf, other.reason))
        else:
            seconds, reason = _why_not(other, best, scatter or 0.0)
            plan = workload.plan(other)
            kept.append(Alternative(str(other), seconds, reason, plan))
    return tuple(kept)


def _why_not(other: CutPlan, best: CutPlan, scatter: float) -> tuple[float, str]:
    """Returns the seconds of a plan, and why it lost."""
    mine, its = best.step, other.step
    seconds = other.bound if its is None else its.seconds
    slower = seconds / mine.seconds - 1
    if its is None:
        one = other.uncut
        if one.n_ranks == one.replicas == 1:
            # Nothing travels, so there is no other reason.
            return seconds, f"one rank takes {1 + slower:.2f} times as long"
        perhaps = f", but may be as good {_WITHIN}" if slower <= scatter else ""
        return seconds, (
            f"cannot win{perhaps}: its ranks and links need {format_seconds(seconds)}"
            f" at least, cut at {other.cuts}"
        )
    if its.seconds <= mine.seconds * SAME:
        return seconds, "as fast, but needs more ranks or memory"
    within = f", {_WITHIN}" if slower <= scatter else ""
    return seconds, (
        f"{slower:.1%} slower{within}: its busiest rank computes"
        f" {format_seconds(its.busy)} (chosen: {format_seconds(mine.busy)}), its"
        f" ranks wait {its.bubble:.0%} of the time ({mine.bubble:.0%})"
        f"{_exposed(its, mine)}"
    )


def _exposed(its: SimulatedStep, mine: SimulatedStep) -> str:
    """Returns a text of the exchange after the last backward, for two steps."""
    if its.exchange is None and mine.exchange is None:
        return ""
    other, chosen = (
        "no time"
        if one.exchange is None
        else format_seconds(one.exchange.exposed_seconds)
        for one in (its, mine)
    )
    return f", and gradients are exchanged for {other} after that ({chosen})"


def _kinds(uncut: UncutPlan) -> list[tuple[str, object]]:
    return [
        (name, getattr(uncut, name))
        for name in ("replicas", "n_ranks", "schedule", "recompute", "hold_in")
    ] + [
        ("hold_dtype", uncut.hold_dtype),
        ("streams", bool(uncut.streamed)),
        ("has groups", uncut.weight_groups > 1),
    ]
