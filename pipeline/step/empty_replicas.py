"""Gives layers their sizes in replicas that have no samples in a minibatch.

Some layers get their sizes at their first call. In other replicas they have been
called, and gradients are exchanged next. So a replica without samples calls its layers
with a sample of another replica, without a backward::

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
    """Returns the first sample of a replica that has some; all ranks must call it.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        loss (Loss): Loss that gets the targets of the sample.
        device (chainer.backend.Device): Device of this rank's stages.
        inputs: Microbatches of this replica, as the first stage gets them.

    Returns:
        In replicas without samples, the inputs with the sample as the first microbatch.
        ``None`` in others, and if all replicas or none have samples.
    """
    n_samples = ranks.calls.agreed.n_samples
    if all(n_samples) or not any(n_samples):
        return None
    replica = next(i for i, n in enumerate(n_samples) if n)
    sample, targets = (), ()
    if ranks.rank == ranks.first:
        mine = [_HOST.send(array[:1]) for array, *_ in inputs[0]]
        sample = ranks.of_replica(replica, mine)
    if ranks.rank == ranks.last:
        targets = ranks.of_replica(replica, loss.first_targets())
    if n_samples[ranks.replica]:
        return None
    if ranks.rank == ranks.last:
        loss.start([targets], device)
    first = [as_tensors(sample, device)] if sample else []
    return [*first, *inputs[1:]]
