"""The points of Fig. 11 of Ozawa et al.: conditions, and numbers of hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cluster import bandwidth
from benchmarks.heterogeneous.mappings import CONDITIONS, SHAPE, TRUE, divisors

#: The numbers of hosts in the paper.
HOSTS = (4, 5, 6, 7, 8)
#: The point of Fig. 12, with checks of DRPM that show how it settles.
FIG_12, FIG_12_CHECKS = ("B", 4), 5


def enlarged(factor: int) -> tuple[int, int, int, int]:
    """Returns the paper's sizes with more hidden units and samples."""
    n, m, l, s = SHAPE  # noqa: E741
    return n, m * factor, l, s * factor


def shares_of(abilities: Sequence[float], cpu: float) -> list[float]:
    """Returns shares of a core in the ratio of abilities."""
    return [cpu * ability / sum(abilities) for ability in abilities]


@dataclass(frozen=True)
class Point:
    """One number of hosts in one condition, and how they are measured.

    Attributes:
        condition: ``'A'`` or ``'B'``.
        hosts: Number of hosts, the first ones of the condition.
        rate: Rate of a host's link.
        factor: Hidden units and samples are the paper's, multiplied by this.
        cpu: Share of all hosts together, in cores.
        rounds: Rounds of all ways.
        steps: Steps of each way in a round.
        every: Iterations between two checks of DRPM, the paper's R.
        checks: Checks of DRPM before the first round.
        is_exact: Whether the hosts have exactly the abilities that methods are told,
            rather than those that the paper's DRPM found.
        with_ours: Whether our own variants are measured beside the paper's methods.
        is_simulated: Whether all seconds are simulated.
    """

    condition: str
    hosts: int
    rate: str = "1gbit"
    factor: int = 16
    cpu: float = 1.6
    rounds: int = 3
    steps: int = 1
    every: int = 20
    checks: int = 2
    is_exact: bool = False
    with_ours: bool = False
    is_simulated: bool = False

    def __str__(self) -> str:
        return f"condition {self.condition}, {self.hosts} hosts"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """n, m, l and s."""
        return enlarged(self.factor)

    @property
    def told(self) -> list[float]:
        """The abilities that methods are told."""
        return list(CONDITIONS[self.condition][: self.hosts])

    @property
    def true(self) -> list[float]:
        """The abilities that the hosts have."""
        every = (CONDITIONS if self.is_exact else TRUE)[self.condition]
        return list(every[: self.hosts])

    @property
    def shares(self) -> list[float]:
        """The share of a core of each host."""
        return shares_of(self.true, self.cpu)

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a link."""
        return bandwidth(self.rate)

    @property
    def ways(self) -> dict[str, dict[str, Any]]:
        """The ways that take turns, by name: fields of `training.Way`."""
        found: dict[str, dict[str, Any]] = {}
        for mapping in ("method 1", "H_rev"):
            for groups in divisors(self.hosts):
                found[f"{mapping}, {groups}"] = {"mapping": mapping, "groups": groups}
        found["SRPM"] = {"mapping": "SRPM"}
        given = {"mapping": "SRPM", "remaps": "given"}
        unknown = {"mapping": "equal", "remaps": "unknown"}
        found["DRPM, given"] = {**given, "is_printed": True}
        found["DRPM, unknown"] = {**unknown, "is_printed": True}
        if self.with_ours:
            found["SRPM, any order"] = {"mapping": "SRPM, any"}
            found["our DRPM, given"] = given
            found["our DRPM, unknown"] = unknown
        return found


def to_json(point: Point) -> dict[str, Any]:
    """Returns what :func:`from_json` reads."""
    return dataclasses.asdict(point)


def from_json(content: dict[str, Any]) -> Point:
    """Returns a point."""
    return Point(**content)
