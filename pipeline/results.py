"""What a call of a pipeline returns on every rank: means, or outputs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence

import chainer
import numpy as np

from divisible.communication.collectives import broadcast
from divisible.communication.signatures import Tensors
from divisible.minibatch import join, unequal_sizes
from pipeline.call_agreement import CALLS
from pipeline.ranks import Ranks
from pipeline.stages.loss import Loss
from pipeline.stages.reports import PendingReports, means
from pipeline.stages.stage import Stage


class Results:
    """Means of loss and accuracy, what layers reported, and outputs, on all ranks.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        loss (Loss): Has the means on the last stage's rank.
        stages: This rank's stages by their numbers.
    """

    def __init__(self, ranks: Ranks, loss: Loss, stages: Mapping[int, Stage]) -> None:
        self._ranks, self._loss, self._stages = ranks, loss, stages
        self._reports = {call: PendingReports() for call in CALLS}
        #: What the last call's gradients are to be multiplied by, on all ranks.
        self.correction = 1.0

    @property
    def are_expected(self) -> bool:
        """Whether this call should collect what this rank's layers report."""
        return self._reports[self._ranks.calls.call].are_expected

    def share(self) -> dict[str, float]:
        """Returns the means of this call, the same on every rank.

        Most models report nothing, and then the ranks need not wait for each other.

        Raises:
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time.
        """
        ranks, calls, names = self._ranks, self._ranks.calls, self._loss.names
        is_last = ranks.rank == ranks.last
        values = np.empty(len(names) + 1)
        if is_last:
            values[:] = (*self._loss.means, self._loss.correction)
            for text in self._loss.warnings():
                # Where the script calls the pipeline.
                warnings.warn(text, stacklevel=3)
        calls.finish()
        broadcast(ranks.comm, values, ranks.last, ranks.timeout, watch=calls.check)
        pending = self._reports[calls.call]
        pending.add(stage.reports.sums() for stage in self._stages.values())
        reported = {}
        if calls.somebody_reports:
            sums = ranks.all_gather(pending.take(), "to tell what layers reported")
            reported = means(list(itertools.chain(*sums)))
        *values, self.correction = values.tolist()
        return {**reported, **dict(zip(names, values))}

    def share_outputs(
        self,
        outputs: Sequence[Tensors],
        axis: int | Sequence[int],
        device: chainer.backend.Device,
    ) -> tuple:
        """Returns what the last layer returned for all samples, on every rank.

        Args:
            outputs: By microbatch, on the last stage's rank.
            axis (int or sequence of ints): Along which axis the samples are.
            device (chainer.backend.Device): Where to put what is returned.

        Raises:
            TypeError, ValueError: On every rank, if outputs cannot be joined so.
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time.
        """
        ranks = self._ranks
        ranks.calls.finish()
        joined: tuple | Exception = ()
        if ranks.rank == ranks.last:
            try:
                sizes = unequal_sizes(ranks.calls.n_inputs, len(outputs))
                joined = join(outputs, sizes, axis)
            except (TypeError, ValueError) as error:
                joined = error
        joined = ranks.broadcast(joined, ranks.last)
        if isinstance(joined, Exception):
            raise joined
        return tuple(map(device.send, joined))
