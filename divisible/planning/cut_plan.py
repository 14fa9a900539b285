"""A plan in the search: not cut yet, then cut, then simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from divisible.planning.expected_costs import ExchangePlan
from divisible.planning.retained_arrays import FULL
from divisible.planning.units import count, words_of_groups
from divisible.schedules.recomputation import RECOMPUTATIONS

#: The way of recomputation in which layers are chosen one by one.
LAYERS = "layers"
#: The ways of recomputation that a search tries.
WAYS = (*RECOMPUTATIONS, LAYERS)


class UncutPlan(NamedTuple):
    """A way to run a model, apart from where it is cut.

    Attributes:
        replicas: Number of pipelines that share a minibatch.
        n_ranks: Number of ranks of a pipeline.
        stages_per_rank: Number of stages on each rank.
        schedule: Name of the schedule.
        n_microbatches: Number of microbatches of a minibatch.
        recompute: Microbatches that run forward again before their backward:
            ``'never'``, ``'except_last'`` or ``'always'``; or `LAYERS`, where layers
            are chosen for all microbatches.
        hold_in: Where microbatches wait for their backward, ``'memory'`` or ``'disk'``,
            on ranks that have no room for them.
        hold_dtype: Dtype in which activations of float32 wait for their backward.
        streamed: Positions of layers whose weights are on disk.
        weight_groups: Number of microbatches whose weight gradients are one product.
        stage_groups: Number of microbatches that each stage takes as one; none for 1.
    """

    replicas: int
    n_ranks: int
    stages_per_rank: int
    schedule: str
    n_microbatches: int
    recompute: str
    hold_in: str = "memory"
    hold_dtype: str = FULL
    streamed: tuple[int, ...] = ()
    weight_groups: int = 1
    stage_groups: tuple[int, ...] = ()

    @property
    def n_stages(self) -> int:
        """The number of stages of a replica."""
        return self.n_ranks * self.stages_per_rank

    @property
    def may_overlap(self) -> bool:
        """Whether a rank may begin a minibatch while others are in the one before."""
        return self.n_ranks > 1 and self.replicas == 1 and not self.streamed

    def __str__(self) -> str:
        words = [count(self.n_stages, "stage")]
        if self.stages_per_rank > 1:
            words[0] += f" on {count(self.n_ranks, 'rank')}"
        if self.replicas > 1:
            words.insert(0, count(self.replicas, "replica"))
        words += [count(self.n_microbatches, "microbatch"), self.schedule]
        if self.recompute == LAYERS:
            words.append("recomputation of layers")
        elif self.recompute != "never":
            words.append(f"recomputation {self.recompute}")
        words += words_of_groups(self.weight_groups, self.stage_groups)
        if self.hold_in != "memory":
            words.append(f"held on {self.hold_in}")
        if self.hold_dtype != FULL:
            words.append(f"held in {self.hold_dtype}")
        if self.streamed:
            words.append(f"{count(len(self.streamed), 'layer')} streamed")
        return ", ".join(words)


class SimulatedStep(NamedTuple):
    """The results of the simulation of a step.

    Attributes:
        seconds: Seconds of the step, including the part of the exchange of gradients
            that is not hidden; of one step among many where minibatches overlap.
        busy: Seconds that the busiest rank computes.
        bubble: The share of the step that ranks wait, on average.
        held: Bytes of microbatches in flight, on the rank with most.
        in_flight: Microbatches in flight, on the rank with most. On a rank with ``n``
            stages each counts an ``n``-th of a microbatch.
        exchange: Costs of the exchange; ``None`` without replicas.
    """

    seconds: float
    busy: float
    bubble: float
    held: int
    in_flight: float
    exchange: ExchangePlan | None


@dataclass(frozen=True)
class CutPlan:
    """A plan with cuts that fit.

    Attributes:
        uncut: The plan apart from its cuts.
        cuts: Positions of the cuts in the model.
        bound: Seconds that a step takes at least.
        parts: Samples of each replica; ``None`` for equal ones.
        on_disk: For each rank of a pipeline whether its microbatches wait on disk;
            ``None`` if none do.
        recomputed: Runs of layers whose forward runs again in their backward, each as
            its first position and the one behind its last.
        step: The simulated step; ``None`` before the simulation.
    """

    uncut: UncutPlan
    cuts: Sequence[int]
    bound: float
    parts: tuple[int, ...] | None = None
    on_disk: tuple[bool, ...] | None = None
    recomputed: tuple[tuple[int, int], ...] = ()
    step: SimulatedStep | None = None

    def __str__(self) -> str:
        if self.parts is None:
            return str(self.uncut)
        return f"{self.uncut}, shares {':'.join(map(str, self.parts))}"
