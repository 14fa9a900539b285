"""A simulated question: schedule, costs, timeline and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from divisible.explore.question import Question
from divisible.explore.sources import Sources
from divisible.schedules.actions import KINDS
from divisible.schedules.costs import Costs
from divisible.schedules.held import peaks, size_changes
from divisible.schedules.minibatches import repeated
from divisible.schedules.schedule import Schedule
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline

#: Units of memory: bytes of layers, or microbatches in all layers of a rank.
BYTES, MICROBATCHES = "bytes", "microbatches"


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated question.

    Attributes:
        question: The question.
        schedule: The schedule of one minibatch.
        costs: The costs of its stages.
        timeline: The predicted timeline of all minibatches.
        cuts: Positions of the cuts in the layers; ``None`` without layers.
        always: Bytes that each rank holds all the time; 0 without layers.
    """

    question: Question
    schedule: Schedule
    costs: Costs
    timeline: Timeline
    cuts: list[int] | None
    always: np.ndarray

    @cached_property
    def run(self) -> Schedule:
        """The schedule of all minibatches together."""
        return repeated(self.schedule, self.question.minibatches)

    @cached_property
    def events(self) -> np.ndarray:
        """For each action of `run`, the position of its event in the timeline."""
        # The actions of a rank follow each other in both.
        return np.flatnonzero(self.timeline.category < len(KINDS))

    @property
    def unit(self) -> str:
        """The unit of memory: `BYTES` or `MICROBATCHES`."""
        return MICROBATCHES if self.cuts is None else BYTES

    @cached_property
    def levels(self) -> list[list[tuple[float, float]]]:
        """For each rank, what it holds from which second on, in order of time.

        What an action adds counts from its start on; what it frees, until its end.
        """
        run, timeline = self.run, self.timeline
        change = size_changes(run, *_sizes(self))
        start, end = timeline.start[self.events], timeline.end[self.events]
        moment = np.where(change > 0, start, end)
        levels = []
        for rank in range(run.n_ranks):
            here = np.arange(run.offsets[rank], run.offsets[rank + 1])
            here = here[change[here] != 0]
            held = self.always[rank] + np.cumsum(change[here])
            first = (0.0, float(self.always[rank]))
            levels.append([first, *zip(moment[here].tolist(), held.tolist())])
        return levels

    @property
    def peaks(self) -> list[float]:
        """For each rank the most that it holds, in the unit of memory."""
        return [max(held for _, held in level) for level in self.levels]


def simulated(question: Question, sources: Sources) -> Simulation:
    """Makes and simulates the schedule of a question.

    Args:
        question: The question.
        sources: Contents of the files that were read.

    Raises:
        ScheduleError: If the schedule cannot run.
        ValueError: If costs, cuts or layers do not fit the schedule.
    """
    schedule = question.made()
    n = question.minibatches
    if not question.layers:
        costs = question.costs(schedule)
        timeline = simulate(schedule, costs, n_minibatches=n)
        nothing = np.zeros(schedule.n_ranks)
        return Simulation(question, schedule, costs, timeline, None, nothing)
    model = sources.model(schedule)
    cuts = sources.cuts(question, schedule)
    costs = model.costs(cuts)
    given = {"transfer": question.message, "latency": question.latency}
    given = {name: value for name, value in given.items() if value is not None}
    if given:
        costs = replace(costs, transfer_backward=None, **given)
        timeline = simulate(schedule, costs, n_minibatches=n)
    else:
        timeline = model.simulate(cuts, n)
    held = peaks(schedule, *costs.units(schedule.n_stages))
    always = model.rank_bytes(cuts) - np.array(held)
    return Simulation(question, schedule, costs, timeline, cuts, always)


def _sizes(simulation: Simulation) -> tuple[np.ndarray, ...]:
    """Returns the sizes of activations, pending W and inputs, of each stage."""
    schedule = simulation.schedule
    if simulation.unit == BYTES:
        return simulation.costs.units(schedule.n_stages)
    # All stages of a rank together have one microbatch in its layers.
    n_stages = np.bincount(schedule.stage_ranks, minlength=schedule.n_ranks)
    share = 1.0 / n_stages[list(schedule.stage_ranks)]
    return share, share, np.zeros_like(share)
