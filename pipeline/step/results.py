"""Results of a pipeline's calls on every rank: means, or outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import chainer
import numpy as np

from divisible.communication.signatures import Tensors
from divisible.minibatch import join, of_no_samples, unequal_sizes
from divisible.user_warnings import warn_user
from divisible.weighted_means import RunningMeans, weighted_mean
from pipeline.calls.call_agreement import CALLS
from pipeline.calls.ranks import Ranks
from pipeline.stages.loss import Loss
from pipeline.stages.reports import PendingReports
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
        #: By name, how many samples of all replicas the last means are of, and how
        #: many of this rank's replica.
        self.n_counted: dict[str, float] = {}
        self.n_own: dict[str, float] = {}

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
        values = np.zeros(2 * len(names) + 1)
        if ranks.rank == ranks.last:
            counted = self._loss.n_counted.values()
            values[:] = (*self._loss.means, *counted, self._loss.correction)
            for text in self._loss.warnings():
                warn_user(text)
        calls.finish()
        if calls.carriers:
            self._tell_stages()
        of_replicas = ranks.values_of_replicas(values, "the result")
        pending = self._reports[calls.call]
        pending.add(stage.reports.sums() for stage in self._stages.values())
        reported = {}
        if calls.agreed.somebody_reports:
            sums = ranks.all_gather(pending.take(), "to tell what layers reported")
            together = RunningMeans()
            for some in itertools.chain(*sums):
                together.add_sums(some)
            reported = together.result()
        n = len(names)
        self.correction = float(of_replicas[ranks.replica, -1])
        counts = of_replicas[:, n : 2 * n]
        self.n_counted = dict(zip(names, counts.sum(axis=0).tolist()))
        self.n_own = dict(zip(names, counts[ranks.replica].tolist()))
        columns = zip(of_replicas[:, :n].T, counts.T)
        return {
            **reported,
            **dict(zip(names, itertools.starmap(weighted_mean, columns))),
        }

    @property
    def n_samples(self) -> int | None:
        """How many samples of this replica the last loss is a mean of.

        ``None`` if no replica has any.

        Raises:
            ValueError: If ``lossfun`` says that it counts a fraction of a sample.
        """
        if not self.n_counted.get("loss"):
            return None
        counted = self.n_own["loss"]
        if counted != int(counted):
            raise ValueError(
                f"lossfun counts {counted} samples in replica {self._ranks.replica}:"
                f" replicas need whole numbers, by which their gradients are weighted"
            )
        return int(counted)

    def _tell_stages(self) -> None:
        """Tells the stages how many samples the minibatch had."""
        for stage in self._stages.values():
            stage.carried.saw(self._ranks.calls.agreed.n_samples[self._ranks.replica])

    def share_outputs(
        self,
        outputs: Sequence[Tensors],
        axis: int | Sequence[int],
        device: chainer.backend.Device,
    ) -> tuple:
        """Returns what the last layer returned for all samples, on every rank.

        A replica without samples returns outputs of no samples, of another replica's
        dtypes and shapes.

        Args:
            outputs: By microbatch, on the last stage's rank.
            axis (int or sequence of ints): Along which axis the samples are.
            device (chainer.backend.Device): Where to put what is returned.

        Raises:
            TypeError, ValueError: On every rank, if outputs cannot be joined so, or no
                replica has samples.
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time.
        """
        ranks = self._ranks
        ranks.calls.finish()
        if ranks.calls.carriers:
            self._tell_stages()
        n_samples = ranks.calls.agreed.n_samples
        joined: tuple | Exception = ()
        if ranks.rank == ranks.last and n_samples[ranks.replica]:
            try:
                sizes = unequal_sizes(n_samples[ranks.replica], len(outputs))
                joined = join(outputs, sizes, axis)
            except (TypeError, ValueError) as error:
                joined = error
        if not all(n_samples):
            joined = self._filled_up(joined, axis)
        joined = ranks.broadcast(joined, ranks.last)
        if isinstance(joined, Exception):
            raise joined
        return tuple(map(device.send, joined))

    def _filled_up(
        self, joined: tuple | Exception, axis: int | Sequence[int]
    ) -> tuple | Exception:
        """Returns a replica's outputs; where it has no samples, outputs of none.

        Args:
            joined: This rank's outputs, or why there are none; empty elsewhere.
            axis (int or sequence of ints): The axis of the samples.

        Raises:
            ValueError: If no replica has samples.
        """
        n_samples = self._ranks.calls.agreed.n_samples
        if not any(n_samples):
            raise ValueError(
                f"x has no samples in any of the {len(n_samples)} replicas: give"
                f" samples to one of them at least"
            )
        mine = joined
        if joined and not isinstance(joined, Exception):
            try:
                mine = of_no_samples(joined, axis)
            except ValueError as error:
                mine = joined = error
        told = self._ranks.all_gather(mine, "to tell the shapes of outputs")
        if n_samples[self._ranks.replica]:
            return joined
        # An empty tuple is from a rank that has no last stage, or no samples either.
        known = [each for each in told if each]
        return next((each for each in known if isinstance(each, tuple)), known[0])
