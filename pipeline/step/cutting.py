"""Cuts the arrays that a script gives to a step into microbatches."""

from __future__ import annotations

from typing import Any

from divisible.communication.signatures import Tensors
from divisible.dtypes import as_trainable, trainable_dtypes
from divisible.minibatch import as_arrays, as_tensors, split
from pipeline.calls.ranks import Ranks
from pipeline.start.agreement import Start


class Cutting:
    """Cuts minibatches on the ranks that read them.

    Args:
        start (Start): Arguments of all ranks, as agreed at the start.
        ranks (Ranks): All ranks of the pipeline.
    """

    def __init__(self, start: Start, ranks: Ranks) -> None:
        stage = start.arguments.stages[0]
        self._ranks, self._loss, self._device = ranks, start.loss, stage.device
        self._reads_x, self._reads_t = (
            f" on rank {ranks.rank}, which has the {which} stage and reads it"
            for which in ("first", "last")
        )
        self._input_dtypes = () if stage.casts_inputs else start.dtypes
        # Inputs of these dtypes need no conversion.
        self._plain_dtypes = trainable_dtypes(self._input_dtypes)

    def cut(
        self, n_microbatches: int, x: Any, t: Any
    ) -> tuple[list[Tensors], tuple[int, int, int]]:
        """Cuts a minibatch into microbatches, and gives the targets to the loss.

        Args:
            n_microbatches (int): Number of microbatches.
            x (array or tuple of arrays): Inputs, with samples along the first axis;
                read on the first stage's rank only. An empty tuple for a replica
                without samples.
            t (array or tuple of arrays): Targets, with samples along the first axis;
                read on the last stage's rank only.

        Returns:
            The first stage's inputs of each microbatch, empty on other ranks. And three
            numbers of samples: in ``x``, in ``t``, and counted by the loss; each -1
            where it is not read, or not known beforehand.

        Raises:
            TypeError: If an array is missing where it is read, or its dtype cannot be
                trained.
            ValueError: If an array has no samples.
        """
        inputs, n_inputs = self.inputs(x, n_microbatches, split)
        n_targets = n_counted = -1
        if self._ranks.rank == self._ranks.last:
            if self._ranks.n_replicas > 1 and isinstance(t, tuple) and not t:
                targets, n_targets = [], 0
            elif t is None and not self._loss.needs_targets:
                targets = [()] * n_microbatches
            else:
                arrays = as_arrays("t", t, self._reads_t)
                targets, n_targets = split(arrays, n_microbatches), len(arrays[0])
            self._loss.start(targets, self._device)
            n_known = self._loss.n_known
            n_counted = -1 if n_known is None else n_known
        return inputs, (n_inputs, n_targets, n_counted)

    def inputs(
        self, x: Any, n_microbatches: int, cut: Any
    ) -> tuple[list[Tensors], int]:
        """Returns the inputs of each microbatch, and the number of samples in all.

        Args:
            x (array or tuple of arrays): Inputs of the minibatch.
            n_microbatches (int): Number of microbatches.
            cut: Cuts arrays into microbatches, such as
                :func:`~divisible.minibatch.split`.
        """
        if self._ranks.rank != self._ranks.first:
            return [], -1
        if self._ranks.n_replicas > 1 and isinstance(x, tuple) and not x:
            return [()] * n_microbatches, 0
        arrays = as_arrays("x", x, self._reads_x)
        for array in arrays:
            if array.dtype not in self._plain_dtypes:
                arrays = [as_trainable(each, self._input_dtypes) for each in arrays]
                break
        inputs = []
        for part in cut(arrays, n_microbatches):
            inputs.append(as_tensors(part, self._device))
        return inputs, len(arrays[0])
