"""Numbers of samples whose states layers carry from minibatch to minibatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import chainer
import numpy as np

from pipeline.stages.stage import Stage


class CarriedCounts:
    """Number of samples with a training state in each replica; 0 where not known.

    Args:
        n_replicas (int): Number of replicas.

    Attributes:
        are_known (bool): Whether some number may be known.
    """

    def __init__(self, n_replicas: int) -> None:
        self._counts = [0] * n_replicas
        self.are_known = False

    def keep(self, n_samples: Sequence[int]) -> None:
        """Records a minibatch; states of samples that it lacks remain.

        Args:
            n_samples: Number of samples in each replica's minibatch.
        """
        self._counts = [max(counts) for counts in zip(self._counts, n_samples)]
        self.are_known = True

    def tell(
        self, stages: Iterable[Stage], n_samples: Sequence[int], replica: int
    ) -> None:
        """Records in each stage how many samples the minibatch had in their replica."""
        for stage in stages:
            stage.carried.saw(n_samples[replica])

    def reset(self) -> None:
        """Drops the numbers, because layers begin without a state."""
        self._counts = [0] * len(self._counts)

    def fewest(self, stages: Iterable[Stage], replica: int) -> tuple[int, str] | None:
        """Returns the fewest samples of a state; see :meth:`.CarriedRows.fewest`.

        Args:
            stages: Stages of this rank.
            replica (int): Number of the rank's replica.
        """
        trains, n_trained = chainer.config.enable_backprop, self._counts[replica]
        fewest = (stage.carried.fewest(trains, n_trained) for stage in stages)
        return min(filter(None, fewest), default=None)

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the numbers, if a layer carries a state."""
        if not isinstance(serializer, chainer.Deserializer):
            if any(self._counts):
                serializer("n_carried", np.array(self._counts))
            return
        n_replicas = len(self._counts)
        try:
            saved = serializer("n_carried", None)
        except KeyError:
            # No layer carried a state, or an earlier version wrote the snapshot.
            saved = [0] * n_replicas
        if len(saved) != n_replicas:
            # Each replica gets an equal share of the states.
            saved = [sum(saved) // n_replicas] * n_replicas
        self._counts = [int(n) for n in saved]
        self.are_known = True
