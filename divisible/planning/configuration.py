"""One way to run a model, and what a search finds out about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from divisible.planning.exchange_plan import ExchangePlan
from divisible.planning.units import count


class Configuration(NamedTuple):
    """One way to run a model, apart from where it is cut."""

    replicas: int
    n_ranks: int
    stages_per_rank: int
    schedule: str
    n_microbatches: int
    checkpoint: str
    hold_in: str = "memory"
    streamed: tuple[int, ...] = ()

    @property
    def n_stages(self) -> int:
        """The number of stages of a replica."""
        return self.n_ranks * self.stages_per_rank

    def __str__(self) -> str:
        words = [count(self.n_stages, "stage")]
        if self.stages_per_rank > 1:
            words[0] += f" on {count(self.n_ranks, 'rank')}"
        if self.replicas > 1:
            words.insert(0, count(self.replicas, "replica"))
        words += [count(self.n_microbatches, "microbatch"), self.schedule]
        if self.checkpoint != "never":
            words.append(f"recomputation {self.checkpoint}")
        if self.hold_in != "memory":
            words.append(f"held on {self.hold_in}")
        if self.streamed:
            words.append(f"{count(len(self.streamed), 'layer')} streamed")
        return ", ".join(words)


class Outcome(NamedTuple):
    """The outcome of a simulated step of a configuration.

    Attributes:
        seconds: Of the step, with what is not hidden of the exchange of gradients.
        busy: Seconds that the busiest rank computes.
        bubble: The share of the step that ranks wait, on average.
        held: Bytes of microbatches in flight, on the rank with most.
        in_flight: Microbatches in flight, on the rank with most; of a rank's ``n``
            stages each has an ``n``-th of one.
        exchange: What the exchange costs; ``None`` without replicas.
    """

    seconds: float
    busy: float
    bubble: float
    held: int
    in_flight: float
    exchange: ExchangePlan | None


@dataclass
class Candidate:
    """A configuration that fits, on its way through the search.

    Attributes:
        configuration: What it is.
        cuts: Where it is cut.
        bound: Seconds that a step takes at least.
        outcome: Of the simulation, if it has been simulated.
        parts: Samples of each replica; ``None`` for equal ones.
        on_disk: For each rank of a pipeline whether its microbatches wait on disk;
            ``None`` if none do.
    """

    configuration: Configuration
    cuts: Sequence[int]
    bound: float
    outcome: Outcome | None = None
    parts: tuple[int, ...] | None = None
    on_disk: tuple[bool, ...] | None = None

    def __str__(self) -> str:
        if self.parts is None:
            return str(self.configuration)
        return f"{self.configuration}, shares {':'.join(map(str, self.parts))}"
