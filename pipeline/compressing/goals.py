"""Goals of the rounds of a compression by trying, and the plans that reach them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from divisible.planning.units import format_bytes
from model_compression.plan import CompressionPlan
from model_compression.rounds import bytes_at
from model_compression.sensitivity_table import Sensitivity
from pipeline.compressing.journal import Settings

#: The granularity of pruning by which layers become smaller.
CHANNEL = "channel"


class Goals:
    """The goals of all rounds.

    Args:
        settings: Settings of the session.
        table: The trials.
        layer_seconds: Seconds of each layer in an evaluation of the dense model.
        groups: Layers that share weights, by the first of them, which the trials have.
    """

    def __init__(
        self,
        settings: Settings,
        table: Sensitivity,
        layer_seconds: Mapping[str, float],
        groups: Mapping[str, Sequence[str]],
    ) -> None:
        self._settings, self._table = settings, table
        self._layer_seconds, self._groups = layer_seconds, groups

    def at(self, way: float) -> tuple[float, float]:
        """Returns the bytes, and the part of the time, that a round may leave.

        The bytes are infinite if only the time is to be less.

        Args:
            way: How far the round goes; see `model_compression.rounds`.
        """
        whole, wanted = sum(self._table.sizes.values()), self._settings.n_bytes
        part = 1.0 if self._settings.time is None else self._settings.time
        if wanted is None and self._settings.time is not None:
            return math.inf, part**way
        if wanted is None:
            wanted = self._table.least_bytes
        smallest = wanted * whole if wanted < 1 else wanted
        return bytes_at(way, whole, smallest), part**way

    def plan(self, way: float, course: Mapping[str, Any]) -> CompressionPlan:
        """Returns the plan of a round.

        Args:
            way: How far the round goes.
            course: Course of its rules, as for :meth:`Sensitivity.choose`.

        Raises:
            ValueError: If the trials do not reach the goals.
        """
        n_bytes, part = self.at(way)
        seconds = self._layer_seconds if part < 1 else None
        plan = self._table.reach(n_bytes, seconds=seconds, time=part, **course)
        rules = plan.settings()
        for rule in rules:
            # A rule names all layers that use a weight.
            rule["layers"] = [*self._groups[rule["layers"][0]]]
            if "granularity" in rule and self._settings.granularity == CHANNEL:
                rule["granularity"] = CHANNEL
        return CompressionPlan.of_settings(rules)

    def words(self, way: float) -> str:
        """Returns what a round may leave, as text."""
        n_bytes, part = self.at(way)
        whole = format_bytes(sum(self._table.sizes.values()))
        words = (
            [f"{format_bytes(n_bytes)} of {whole}"] if math.isfinite(n_bytes) else []
        )
        words += [f"{part:.2f} of the layers' time"] if part < 1 else []
        return ", ".join(words)


def tried_granularity(granularity: Any) -> Any:
    """Returns the granularity of trials, in which no layer changes another one."""
    if granularity == CHANNEL:
        return "row"
    return tuple(granularity) if isinstance(granularity, list) else granularity


def without_rows(table: Sensitivity, shrinkable: Collection[str]) -> Sensitivity:
    """Returns the table without rows of layers whose channels have to stay."""
    kept = [t for t in table.trials if not t.degree or t.layer in shrinkable]
    return Sensitivity(table.base, kept, table.sizes, table.better, table.granularity)
