"""Simulations of plans, and changes as long as the step becomes shorter.

Cuts are found for the slowest stage, but it does not determine the step alone. Until
the pipeline is full, when it empties, and wherever a rank waits for an answer, messages
count as well::

    cuts [0, 4, 8, 12] --> [0, 3, 8, 12], [0, 5, 8, 12], ...  one of them faster: go on
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from divisible.planning.cut_plan import LAYERS, CutPlan, SimulatedStep
from divisible.planning.cuts import MemoryLimitError
from divisible.planning.cutting import cut_plan
from divisible.planning.workload import Workload
from divisible.schedules.catalogue import CATALOGUE
from divisible.schedules.steady_state import steady_seconds

#: Predictions of equal time differ by rounding.
SAME = 1 + 1e-6
# Distances by which a cut, or a cut and the next one, is moved to see whether that is
# faster.
_MOVES = (
    *((sign * distance,) for distance in (1, 2, 3, 4) for sign in (-1, 1)),
    *itertools.product((-1, 1), repeat=2),
)


def simulated(workload: Workload, cut: CutPlan) -> CutPlan:
    """Returns a cut plan with its simulated step.

    Args:
        workload: The minibatch on its machine.
        cut: The plan.
    """
    model = workload.cost_model_of(cut)
    timeline = model.simulate(cut.cuts)
    spans = model.spans(cut.cuts, timeline)
    seconds = timeline.makespan
    if model.overlaps:
        versions = model.schedule.weight_versions
        seconds = steady_seconds(timeline, partial(model.simulate, cut.cuts), versions)
    if spans is not None:
        seconds = max(seconds, float(spans.end.max()))
    step = SimulatedStep(
        seconds=seconds,
        busy=float(timeline.busy.max()),
        # Share of all ranks until the last exchange has ended; sums differ by rounding.
        bubble=max(0.0, float(1 - timeline.busy.mean() / seconds)),
        held=int(timeline.peak_memory.max()),
        in_flight=float(timeline.peak_in_flight.max()),
        exchange=model.exchange_plan(cut.cuts, timeline, spans),
    )
    return replace(cut, step=step)


def moved(workload: Workload, cut: CutPlan, effort: int) -> CutPlan:
    """Moves the cuts of a simulated plan as long as that makes it faster.

    Args:
        workload: The minibatch on its machine.
        cut: The plan, simulated.
        effort: Limit of the trials: the sum of layers times stages, and of actions.

    Returns:
        CutPlan: The best plan found, simulated.
    """
    n_stages, n_layers = cut.uncut.n_stages, cut.cuts[-1]
    each = n_stages * (n_layers + 3 * cut.uncut.n_microbatches)
    before = None
    while cut is not before:
        before = cut
        for k, move in itertools.product(range(1, n_stages), _MOVES):
            if effort < each:
                return cut
            cuts = list(cut.cuts)
            for i, distance in enumerate(move, k):
                cuts[i] += distance
            is_cut = cuts[-1] == n_layers and all(map(operator.lt, cuts, cuts[1:]))
            if is_cut:
                effort -= each
                cut = _faster(workload, cut, cuts)
    return cut


def grouped(workload: Workload, cut: CutPlan, chooses: bool = False) -> CutPlan:
    """Joins microbatches in stages, as long as that makes a simulated plan faster.

    Sizes double, from the last stage to the first, and once more from the sizes found.

    Args:
        workload: The minibatch on its machine.
        cut: The plan, with cuts that stay.
        chooses: Whether layers may run again to make room for groups.

    Returns:
        CutPlan: The best plan found, simulated.
    """
    versions = CATALOGUE[cut.uncut.schedule].weight_versions
    if cut.uncut.hold_in == "disk" or len(workload.profiles) == 1 or versions > 1:
        return cut
    n_stages, m = cut.uncut.n_stages, cut.uncut.n_microbatches
    layers = workload.profiles[0].layers
    stages = [
        stage
        for stage in reversed(range(n_stages))
        if all(layer.takes_groups for layer in layers[slice(*cut.cuts[stage:][:2])])
    ]
    before = None
    while cut is not before:
        before = cut
        for stage in stages:
            sizes = list(cut.uncut.stage_groups or (1,) * n_stages)
            while sizes[stage] < m:
                sizes[stage] = min(2 * sizes[stage], m)
                other = _regrouped(workload, cut, tuple(sizes), chooses)
                if other is cut:
                    break
                cut = other
    return cut


def _regrouped(
    workload: Workload, cut: CutPlan, sizes: tuple[int, ...], chooses: bool
) -> CutPlan:
    """Returns the plan, or one with other groups if that is faster and fits."""
    uncut = cut.uncut._replace(stage_groups=sizes)
    ways = [uncut]
    if chooses and uncut.recompute == "never":
        ways.append(uncut._replace(recompute=LAYERS))
    for way in ways:
        try:
            other = cut_plan(workload, way, cut.cuts, cut.parts)
            break
        except MemoryLimitError:
            continue
    else:
        return cut
    other = simulated(workload, other)
    return other if other.step.seconds < cut.step.seconds / SAME else cut


def _faster(workload: Workload, cut: CutPlan, cuts: Sequence[int]) -> CutPlan:
    """Returns the plan, or one with other cuts if that is faster and fits."""
    seconds = cut.step.seconds / SAME
    try:
        other = cut_plan(workload, cut.uncut, cuts, cut.parts)
    except MemoryLimitError:
        return cut
    if other.bound >= seconds:
        return cut
    other = simulated(workload, other)
    return other if other.step.seconds < seconds else cut
