"""Whether the speeds of ranks compare, without a profile and after moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from divisible import Divisible
from pipeline.pipeline import Pipeline
from pipeline.rebalancing.common_layer import compare_ranks
from pipeline.rebalancing.layer_costs import SaidOfLayers

# A rank with other layers may be this much faster than ever with its own. If it is
# faster, these layers did not cost what was measured on their former ranks.
_FASTER = 1.25


class RankComparison:
    """Tells slow ranks from costly layers, as far as that is known.

    A profile tells both apart, and so does a layer that all ranks compute
    (:mod:`~pipeline.rebalancing.common_layer`). This layer may not reveal a host that
    is slow at other things than forwards. Then the first move reveals it::

        stage 1 takes 3 s for 3 layers, the others 1 s     costly layers, or a slow host
        a layer moves to stage 0, which takes
            2 s                                            it costs 1 s: costly layers
            1.33 s                                         a slow host: rank 0 seems to
                                                           be 1.5 times as fast as ever

    From then on no rank is called slow.

    Args:
        has_profile: Whether a profile has the costs of layers.

    Attributes:
        holds (bool): Whether the speeds of ranks compare.
        reason (str): Reason why they do not, if that is known; else empty.

    Example:
        >>> ranks = RankComparison(has_profile=False)
        >>> ranks.holds = True
        >>> ranks.see([1.0, 1.0], cuts=[0, 3, 6], stage_ranks=[0, 1])
        True
        >>> ranks.see([1.5, 1.0], cuts=[0, 4, 6], stage_ranks=[0, 1])
        False
    """

    def __init__(self, has_profile: bool) -> None:
        self._has_profile = self.holds = has_profile
        self.reason = ""
        # Layers of each rank of a pipeline at the first check, and its highest speed
        # while it had no other layers.
        self._own: list[set[int]] = []
        self._best = np.zeros(0)

    def compare(
        self,
        pipe: Pipeline,
        build: Callable[[], Divisible],
        said: Sequence[SaidOfLayers],
        slowest: Sequence[int],
    ) -> list[float]:
        """Compares all ranks by one layer; all ranks must call it.

        The moment of the call must be between two minibatches.

        Args:
            pipe: The pipeline.
            build: Returns the undivided model.
            said: Measurements of all ranks' layers.
            slowest: The slowest rank for each place in the pipeline.

        Returns:
            Speeds of the ranks of a pipeline; empty if they are not known.
        """
        compared = compare_ranks(pipe, build, said)
        self.holds = compared.speeds is not None
        if not self.holds:
            self.reason = (
                f"the ranks could not all compute one layer: {compared.reason}"
            )
            return []
        return [compared.speeds[rank] for rank in slowest]

    def see(
        self, speeds: Sequence[float], cuts: Sequence[int], stage_ranks: Sequence[int]
    ) -> bool:
        """Records the speeds of a check, and returns whether they still compare.

        Args:
            speeds: Speeds of the ranks of a pipeline, relative to the profile.
            cuts: Cuts of the model.
            stage_ranks: Rank of each stage.
        """
        if self._has_profile or not self.holds:
            return self.holds
        layers: list[set[int]] = [set() for _ in speeds]
        for rank, start, end in zip(stage_ranks, cuts, cuts[1:]):
            layers[rank] |= {*range(start, end)}
        if not self._own:
            self._own, self._best = layers, np.zeros(len(speeds))
        for rank, speed in enumerate(speeds):
            if layers[rank] <= self._own[rank]:
                self._best[rank] = max(self._best[rank], speed)
            elif speed > _FASTER * self._best[rank]:
                self.holds = False
                self.reason = (
                    f"rank {rank} computes layers of others"
                    f" {speed / self._best[rank]:.2f} times as fast as their own ranks'"
                    f" times let expect"
                )
        return self.holds
