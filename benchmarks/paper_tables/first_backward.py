"""How long the first backward of a step takes, beside the later ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.common.results import ratios
from divisible.schedules.timeline import Timeline

HEADER = "rank  forward  first backward  later ones  later / first        update"


class RankSeconds(NamedTuple):
    """The seconds of one rank in a step.

    Attributes:
        forward: Mean of the forwards.
        first: The first backward.
        later: Mean of the later backwards.
        update: The updates.
    """

    forward: float
    first: float
    later: float
    update: float

    @classmethod
    def of(cls, timeline: Timeline) -> list[RankSeconds]:
        """Returns the seconds of each rank.

        Args:
            timeline: A step with two backwards or more on each rank.

        Example:
            >>> events = [(0, "0F0", 0, 1), (0, "0F1", 1, 2), (0, "0B0", 2, 4)]
            >>> events += [(0, "0B1", 4, 7), (0, "update", 7, 8, "update")]
            >>> RankSeconds.of(Timeline(events))
            [RankSeconds(forward=1.0, first=2.0, later=3.0, update=1.0)]
        """
        found = []
        for rank, update in enumerate(timeline.updating.tolist()):
            seconds: dict[str, list[float]] = {"F": [], "B": []}
            for event in timeline.rank_events(rank):
                if event.category in seconds:
                    seconds[event.category].append(event.end - event.start)
            first, *later = seconds["B"]
            forward = statistics.fmean(seconds["F"])
            found.append(cls(forward, first, statistics.fmean(later), update))
        return found


def table(timelines: Sequence[Timeline]) -> list[str]:
    """Returns a line for each rank below `HEADER`: medians of the steps, in ms.

    Args:
        timelines: Steps of the same ranks.
    """
    lines = []
    for rank, steps in enumerate(zip(*map(RankSeconds.of, timelines))):
        medians = [1e3 * statistics.median(each) for each in zip(*steps)]
        forward, first, later, update = (f"{each:.1f}" for each in medians)
        ratio = ratios([step.later for step in steps], [step.first for step in steps])
        lines.append(
            f"{rank:4} {forward:>8} {first:>15} {later:>11}  {ratio:19} {update:>7}"
        )
    return lines


def later_to_first(timelines: Sequence[Timeline]) -> float:
    """Returns how many times as long as the first backward a later one takes.

    Args:
        timelines: Steps of the same ranks.

    Returns:
        The median of all ranks and steps.
    """
    steps = [each for timeline in timelines for each in RankSeconds.of(timeline)]
    return statistics.median(each.later / each.first for each in steps)
