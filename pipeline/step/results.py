"""Results of calls that need more than one rank's means: replicas, reports, outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import chainer
import numpy as np

from divisible.communication.signatures import Tensors
from divisible.minibatch import join, of_no_samples, unequal_sizes
from divisible.weighted_means import RunningMeans, weighted_mean
from pipeline.calls.ranks import Ranks
from pipeline.stages.reports import PendingReports


def over_replicas(rows: np.ndarray, n: int) -> tuple[list[float], list[float]]:
    """Returns means over all replicas, and how many samples they are of.

    Args:
        rows (numpy.ndarray): For each replica its means, of how many samples each is,
            and more.
        n (int): How many means there are.
    """
    of_samples = rows[:, n : 2 * n]
    columns = zip(rows[:, :n].T, of_samples.T)
    # Equal bits wherever it is computed.
    found = list(itertools.starmap(weighted_mean, columns))
    return found, of_samples.sum(axis=0).tolist()


def reported(ranks: Ranks, pending: PendingReports) -> dict[str, float]:
    """Returns means of what layers of all ranks reported; a call of all ranks."""
    sums = ranks.all_gather(pending.take(), "to tell what layers reported")
    together = RunningMeans()
    for some in itertools.chain(*sums):
        together.add_sums(some)
    return together.result()


def whole_samples(
    n_counted: Mapping[str, float], n_own: Mapping[str, float], replica: int
) -> int | None:
    """Returns how many samples of a replica the last loss is a mean of.

    ``None`` if no replica has any.

    Args:
        n_counted: By name, how many samples of all replicas the means are of.
        n_own: The same of the replica.
        replica (int): Its number.

    Raises:
        ValueError: If ``lossfun`` says that it counts a fraction of a sample.
    """
    if not n_counted.get("loss"):
        return None
    counted = n_own["loss"]
    if counted != int(counted):
        raise ValueError(
            f"lossfun counts {counted} samples in replica {replica}: replicas need"
            f" whole numbers, by which their gradients are weighted"
        )
    return int(counted)


def joined(
    ranks: Ranks,
    outputs: Sequence[Tensors],
    axis: int | Sequence[int],
    device: chainer.backend.Device,
) -> tuple:
    """Returns what the last layer returned for all samples, on every rank.

    A replica without samples returns outputs of no samples, of another replica's
    dtypes and shapes.

    To be called when the call has been compared.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        outputs: By microbatch, on the last stage's rank.
        axis (int or sequence of ints): Along which axis the samples are.
        device (chainer.backend.Device): Where to put what is returned.

    Raises:
        TypeError, ValueError: On every rank, if outputs cannot be joined so, or no
            replica has samples.
        StallError: If another rank does not come in time.
    """
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
    found = ranks.broadcast(found, ranks.last)
    if isinstance(found, Exception):
        raise found
    return tuple(map(device.send, found))


def _filled_up(
    ranks: Ranks, joined: tuple | Exception, axis: int | Sequence[int]
) -> tuple | Exception:
    """Returns a replica's outputs; where it has no samples, outputs of none.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        joined: This rank's outputs, or why there are none; empty elsewhere.
        axis (int or sequence of ints): The axis of the samples.

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
    # An empty tuple is from a rank that has no last stage, or no samples either.
    known = [each for each in told if each]
    return next((each for each in known if isinstance(each, tuple)), known[0])
