"""The minibatch of a call, cut where it is read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible.communication.signatures import Tensors
from divisible.dtypes import as_trainable
from divisible.minibatch import as_arrays, as_tensors, split, split_unequally
from pipeline.calls.ranks import Ranks
from pipeline.stages.loss import Loss

_HOST = chainer.get_device("@numpy")


class CutMinibatch(NamedTuple):
    """The part of a minibatch that a rank has read, cut into microbatches.

    Attributes:
        inputs: Of the first stage, for each microbatch; empty on other ranks.
        n_samples: Of ``x``, of ``t``, and those that the loss counts; -1 where it is
            not read, or not known beforehand.
    """

    inputs: list[Tensors]
    n_samples: tuple[int, int, int]


class Feed:
    """Reads ``x`` on the first stage's rank, and ``t`` on the last one's.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        loss (Loss): Gets the targets.
        device (chainer.backend.Device): Of this rank's stages.
        dtypes: The floating-point types of all stages' parameters.
    """

    def __init__(
        self,
        ranks: Ranks,
        loss: Loss,
        device: chainer.backend.Device,
        dtypes: Collection[np.dtype],
    ) -> None:
        self._ranks, self._loss = ranks, loss
        self._device, self._dtypes = device, dtypes

    def read(self, n_microbatches: int, x: Any, t: Any) -> CutMinibatch:
        """Cuts a minibatch into microbatches, and gives the targets to the loss.

        Args:
            n_microbatches (int): How many at most.
            x (array or tuple of arrays): What the user gave; of several replicas one
                may have no samples, and an empty tuple.
            t (array or tuple of arrays): What the user gave.

        Raises:
            TypeError: If one is missing where it is read, or cannot be trained on.
            ValueError: If it has no samples.
        """
        inputs, n_inputs = self._inputs(x, n_microbatches, split)
        n_targets = n_counted = -1
        if self._ranks.rank == self._ranks.last:
            targets, n_targets = self._targets(t, n_microbatches)
            self._loss.start(targets, self._device)
            if self._loss.n_known is not None:
                n_counted = self._loss.n_known
        return CutMinibatch(inputs, (n_inputs, n_targets, n_counted))

    def read_inputs(self, n_microbatches: int, x: Any) -> CutMinibatch:
        """Cuts a minibatch of which no loss is wanted, into parts of any size.

        Args:
            n_microbatches (int): As of :meth:`read`.
            x (array or tuple of arrays): Likewise.

        Raises:
            TypeError, ValueError: Likewise.
        """
        inputs, n_inputs = self._inputs(x, n_microbatches, split_unequally)
        if self._ranks.rank == self._ranks.last:
            self._loss.start(None, self._device)
        return CutMinibatch(inputs, (n_inputs, -1, -1))

    def read_elsewhere(self, cut: CutMinibatch, replica: int) -> CutMinibatch:
        """Reads the first sample of another replica; a call of all ranks.

        Args:
            cut (CutMinibatch): The minibatch of this replica.
            replica (int): The number of the replica that has the sample.

        Returns:
            CutMinibatch: The sample as the first microbatch, for replicas without
            samples; for others what was given.
        """
        ranks, sample, targets = self._ranks, (), ()
        if ranks.rank == ranks.first:
            mine = [_HOST.send(array[:1]) for array, _ in cut.inputs[0]]
            sample = ranks.of_replica(replica, mine)
        if ranks.rank == ranks.last:
            targets = ranks.of_replica(replica, self._loss.first_targets())
        if ranks.calls.agreed.n_samples[ranks.replica]:
            return cut
        if ranks.rank == ranks.last:
            self._loss.start([targets], self._device)
        first = [as_tensors(sample, self._device)] if sample else []
        return CutMinibatch([*first, *cut.inputs[1:]], (1, 1, -1))

    def _inputs(
        self, x: Any, n_microbatches: int, cut: Callable
    ) -> tuple[list[Tensors], int]:
        """Returns the inputs of microbatches, and of how many samples they are."""
        if self._ranks.rank != self._ranks.first:
            return [], -1
        if self._is_empty(x):
            return [()] * n_microbatches, 0
        arrays = as_arrays("x", x, self._where("first"))
        arrays = [as_trainable(array, self._dtypes) for array in arrays]
        parts = cut(arrays, n_microbatches)
        return [as_tensors(part, self._device) for part in parts], len(arrays[0])

    def _targets(self, t: Any, n_microbatches: int) -> tuple[list[tuple], int]:
        """Returns the targets of microbatches, and of how many samples they are."""
        if self._is_empty(t):
            return [], 0
        if t is None and not self._loss.needs_targets:
            return [()] * n_microbatches, -1
        targets = as_arrays("t", t, self._where("last"))
        return split(targets, n_microbatches), len(targets[0])

    def _is_empty(self, arrays: Any) -> bool:
        is_tuple = isinstance(arrays, tuple) and not arrays
        return is_tuple and self._ranks.n_replicas > 1

    def _where(self, which: str) -> str:
        return f" on rank {self._ranks.rank}, which has the {which} stage and reads it"
