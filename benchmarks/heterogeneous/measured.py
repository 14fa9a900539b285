"""Measured points of Fig. 11, and the methods that it compares."""

from __future__ import annotations

import dataclasses
import statistics
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.heterogeneous.points import Point, from_json
from heterogeneous.estimates import efficiency

#: The paper's methods, and how the names of their ways begin.
METHODS = {
    "method 1": "method 1,",
    "method 2 (H_rev)": "H_rev,",
    "SRPM": "SRPM",
    "DRPM, given": "DRPM, given",
    "DRPM, unknown": "DRPM, unknown",
}
#: Our own variants, if they were measured.
OURS = ("SRPM, any order", "our DRPM, given", "our DRPM, unknown")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measured point.

    Attributes:
        point: The point.
        content: Result of `benchmarks.heterogeneous.rounds.measure`, with the machine,
            its load and the date.
    """

    point: Point
    content: dict[str, Any]

    @cached_property
    def efficiencies(self) -> dict[str, list[float]]:
        """Equation (11) of each way, in each round."""
        alone = self.content["alone"]
        return {
            name: [efficiency(s, each) for s, each in zip(seconds, alone)]
            for name, seconds in self.content["ways"].items()
        }

    def way(self, method: str) -> str:
        """Returns the way of a method, with the best number of groups.

        Args:
            method: One of `METHODS`, or a way.
        """
        values = self.efficiencies
        if method in values:
            return method
        ways = [name for name in values if name.startswith(METHODS[method])]
        return max(ways, key=lambda name: statistics.median(values[name]))

    def efficiency(self, method: str) -> float:
        """Returns the median efficiency of a method."""
        return statistics.median(self.efficiencies[self.way(method)])

    def range(self, method: str) -> tuple[float, float]:
        """Returns the least and the greatest efficiency of a method in a round."""
        values = self.efficiencies[self.way(method)]
        return min(values), max(values)

    @property
    def checks(self) -> dict[str, list[dict[str, Any]]]:
        """The checks of the paper's DRPM, by method."""
        every = self.content["checks"]
        return {method: every[method] for method in METHODS if method in every}

    def simulated(self, method: str) -> float:
        """Returns the efficiency of a method by simulated seconds."""
        seconds = self.content["simulated"][self.way(method)]
        alone = [statistics.median(each) for each in zip(*self.content["alone"])]
        return efficiency(seconds, alone)


def read(file: Path, like: Point) -> list[Measured]:
    """Returns the measured points with the settings of a point, in order.

    Args:
        file: File with a line for each point.
        like: Point of any condition, number of hosts, and number of checks.
    """
    found: dict[tuple[str, int], Measured] = {}
    for line in json_lines.read(file):
        point = from_json(line.pop("point"))
        same = {"condition": like.condition, "hosts": like.hosts, "checks": like.checks}
        if dataclasses.replace(point, **same) == like:
            found[point.condition, point.hosts] = Measured(point, line)
    return [found[place] for place in sorted(found)]
