"""Results that need more than the means: reports of layers, and joined outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import chainer

from divisible.communication.signatures import Tensors
from divisible.minibatch import join, of_no_samples, unequal_sizes
from divisible.weighted_means import RunningMeans
from pipeline.calls.ranks import Ranks
from pipeline.stages.reports import PendingReports


def reported(ranks: Ranks, pending: PendingReports) -> dict[str, float]:
    """Returns the means of values that layers reported; all ranks must call it.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        pending (PendingReports): Values that layers of this rank have reported.

    Returns:
        dict: Means over the samples of all ranks, by name.
    """
    sums = ranks.all_gather(pending.take(), "to tell what layers reported")
    together = RunningMeans()
    for some in itertools.chain(*sums):
        together.add_sums(some)
    return together.result()


class LateOutputs:
    """The last stage's outputs for all samples of a minibatch, on every rank.

    The last stage's rank sends them at once. The other ranks may begin the next
    minibatch before they read them::

        rank 0   F0 F1 F2 F3 | F0 F1 F2 F3 | read | F0 F1 ...
        rank 1      F0 F1 F2 F3 send | F0 F1 F2 F3 send | read | ...

    A replica without samples returns outputs without samples, with the dtypes and
    shapes of another replica's outputs.

    The call must have been compared before. All ranks must make and read these objects
    in the same order.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        outputs: Outputs of each microbatch; read on the last stage's rank only.
        axis (int or sequence of ints): Axis of the samples, for all outputs or for
            each.
        device (chainer.backend.Device): Device of the returned arrays.

    Raises:
        ValueError: On every rank, if no replica has samples.
    """

    def __init__(
        self,
        ranks: Ranks,
        outputs: Sequence[Tensors],
        axis: int | Sequence[int],
        device: chainer.backend.Device,
    ) -> None:
        n_samples = ranks.calls.agreed.n_samples
        found: tuple | Exception = ()
        if ranks.rank == ranks.last and n_samples[ranks.replica]:
            try:
                sizes = unequal_sizes(n_samples[ranks.replica], len(outputs))
                found = join(outputs, sizes, axis)
            except (TypeError, ValueError) as error:
                found = error
        if not all(n_samples):
            found = _filled_up(ranks, found, axis)
        self._sent, self._device = ranks.late_object(found, ranks.last), device

    def read(self) -> tuple:
        """Returns the outputs; waits for them.

        Raises:
            TypeError, ValueError: On every rank, if the outputs cannot be joined along
                the axis.
            StallError: If another rank does not answer in time.
        """
        found = self._sent.read()
        if isinstance(found, Exception):
            raise found
        return tuple(map(self._device.send, found))


def _filled_up(
    ranks: Ranks, joined: tuple | Exception, axis: int | Sequence[int]
) -> tuple | Exception:
    """Returns a replica's outputs; outputs without samples if it has none.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        joined: Outputs on this rank, or the error in their place; empty on other ranks.
        axis (int or sequence of ints): Axis of the samples, for all outputs or for
            each.

    Raises:
        ValueError: If no replica has samples.
    """
    n_samples = ranks.calls.agreed.n_samples
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
    told = ranks.all_gather(mine, "to tell the shapes of outputs")
    if n_samples[ranks.replica]:
        return joined
    # Ranks without a last stage, or without samples, send an empty tuple.
    known = [each for each in told if each]
    return next((each for each in known if isinstance(each, tuple)), known[0])
