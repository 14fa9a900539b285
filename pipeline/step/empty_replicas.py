"""Replicas that have no samples in a minibatch, whose layers get a size all the same.

Layers that get sizes at their first call have been called in other replicas, and
gradients are exchanged next. So those of a replica without samples are called with a
sample of another one, without a backward::

    replica 0   samples 0 to 7   forward, backward   sample 0 --.
    replica 1   none                                            '--> forward    exchange
"""

from __future__ import annotations

from collections.abc import Sequence

import chainer

from divisible.communication.signatures import Tensors
from divisible.minibatch import as_tensors
from pipeline.calls.ranks import Ranks
from pipeline.stages.loss import Loss

_HOST = chainer.get_device("@numpy")


def sample_from_elsewhere(
    ranks: Ranks, loss: Loss, device: chainer.backend.Device, inputs: Sequence[Tensors]
) -> list[Tensors] | None:
    """Reads the first sample of a replica that has some; a call of all ranks.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        loss (Loss): Gets the targets.
        device (chainer.backend.Device): The device of this rank's stages.
        inputs: The minibatch of this replica, as the first stage gets it.

    Returns:
        For replicas without samples, the inputs with the sample as the first
        microbatch; ``None`` for others, and if there is nothing to do.
    """
    n_samples = ranks.calls.agreed.n_samples
    if all(n_samples) or not any(n_samples):
        return None
    replica = next(i for i, n in enumerate(n_samples) if n)
    sample, targets = (), ()
    if ranks.rank == ranks.first:
        mine = [_HOST.send(array[:1]) for array, _ in inputs[0]]
        sample = ranks.of_replica(replica, mine)
    if ranks.rank == ranks.last:
        targets = ranks.of_replica(replica, loss.first_targets())
    if n_samples[ranks.replica]:
        return None
    if ranks.rank == ranks.last:
        loss.start([targets], device)
    first = [as_tensors(sample, device)] if sample else []
    return [*first, *inputs[1:]]
