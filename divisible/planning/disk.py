"""Disks for arrays that do not fit into memory, and costs of streamed layers.

A streamed layer (:class:`divisible.streaming.Streamed`) passes over its files::

                         of a microbatch            of a minibatch
    forward              read W
    input gradients      read W
    weight gradients     read gW, write gW          the first one only writes,
    with the update                                 the last one reads gW, state and
                                                    writes W, state

Where replicas exchange gradients, the last microbatch writes its gradients as well. The
update follows in a pass of its own, which reads W, gW and the state. For an embedding,
a microbatch reads and writes some rows, in negligible time; the update passes over the
whole embedding if it has a state.

A pass runs beside the computation, so it costs only the time by which it is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import chainer
import chainer.links as L

from divisible.planning.layer_cost import LayerCost
from divisible.planning.profile import Profile
from divisible.records import plain_number

#: The links whose weights can be on disk, by exact types.
STREAMABLE = (L.Linear, L.Convolution2D, L.EmbedID)
#: The links of whose weights a microbatch needs some rows only.
GATHERED = (L.EmbedID,)
#: Bytes of the largest segment that is tried by default: large enough for the disk's
#: full speed, and for the full speed of BLAS.
MOST_BYTES = 32 * 2**20
#: Bytes of the smallest segment that is tried.
LEAST_BYTES = 2**20
#: Segments that a rank may have in memory at a time. An update with two arrays of state
#: passes through four files. For each file, one segment is computed with and the next
#: one is read. Four more are being written, and an update rule or an initializer
#: allocates up to four others.
IN_MEMORY = 16
# A rank's segments have one part in so many of its memory.
_SHARE = 8


def segment_bytes(memory: float) -> float:
    """Returns the size of a segment where a rank may use some bytes of memory.

    Example:
        >>> segment_bytes(2**30) / 2**20
        8.0
    """
    return min(max(memory / (_SHARE * IN_MEMORY), LEAST_BYTES), MOST_BYTES)


def streamable_bytes(
    links: Iterable[chainer.Link], kinds: Sequence[type] = STREAMABLE
) -> int:
    """Returns the bytes of the weights, among those of links, that can be on disk."""
    weights = {
        id(link.W): link.W
        for link in links
        if type(link) in kinds and getattr(link, "groups", 1) == 1
    }
    return sum(
        W.array.nbytes
        for W in weights.values()
        if W.is_initialized and W.dtype.char in "fd"
    )


@dataclass(frozen=True)
class Disk:
    """The speed at which a disk is read and written.

    :func:`divisible.streaming.measure_disk` measures it.

    Attributes:
        read: Bytes per second that are read.
        write: Bytes per second that are written.

    Raises:
        TypeError: If a value is not a number.
        ValueError: If a value is not positive and finite.

    Example:
        >>> Disk(read=2e9, write=5e8).seconds(n_read=1e9, n_written=1e9)
        2.5
    """

    read: float
    write: float

    def __post_init__(self) -> None:
        for name in ("read", "write"):
            value = plain_number(
                f"{name} of a disk", getattr(self, name), "Give bytes per second"
            )
            if not value > 0:
                raise ValueError(f"{name} of a disk must be positive, not {value}")

    def seconds(self, n_read: float, n_written: float) -> float:
        """Returns the seconds of reading and writing so many bytes."""
        return n_read / self.read + n_written / self.write


def streamed_cost(
    cost: LayerCost,
    disk: Disk,
    n_microbatches: int,
    segment_bytes: float = MOST_BYTES,
    has_replicas: bool = False,
) -> LayerCost:
    """Returns the costs of a layer if as much as possible of its weights is on disk.

    Args:
        cost: Costs of the layer in memory.
        disk: Disk that has the weights.
        n_microbatches: Microbatches of a minibatch, which share the update's passes.
        segment_bytes: Bytes of a segment; smaller weights are one segment.
        has_replicas: Whether gradients are exchanged before they are used.

    Returns:
        LayerCost: The costs; ``cost`` if none of its weights can be streamed.

    Example:
        >>> layer = LayerCost(
        ...     1.0, 1.0, 1.0, parameter_bytes=100, optimizer_bytes=100,
        ...     streamable_bytes=100)
        >>> slow = streamed_cost(layer, Disk(read=50, write=100), n_microbatches=1)
        >>> slow.forward, slow.backward_input, slow.backward_weight
        (2.0, 2.0, 4.0)
        >>> slow.parameter_bytes, slow.optimizer_bytes
        (0, 0)
        >>> embedding = replace(layer, gathered_bytes=100, optimizer_bytes=0)
        >>> streamed_cost(embedding, Disk(50, 100), n_microbatches=1).backward_weight
        1.0
    """
    size = cost.streamable_bytes
    if not size:
        return cost
    share = size / cost.parameter_bytes
    state = share * cost.optimizer_bytes
    passed = size - cost.gathered_bytes
    reading = disk.seconds(passed, 0)
    updating = _update_seconds if has_replicas else _early_update_seconds
    weight = updating(disk, passed, cost.gathered_bytes, state, n_microbatches, cost)
    return replace(
        cost,
        forward=max(cost.forward, reading),
        backward_input=max(cost.backward_input, reading),
        backward_weight=weight / n_microbatches,
        parameter_bytes=cost.parameter_bytes - size,
        optimizer_bytes=round(cost.optimizer_bytes - state),
        workspace_bytes=round(
            cost.workspace_bytes + IN_MEMORY * min(segment_bytes, size)
        ),
        n_parameters=round(cost.n_gradients),
        streamable_bytes=0,
        gathered_bytes=0,
    )


def _update_seconds(
    disk: Disk, passed: int, gathered: int, state: float, m: int, cost: LayerCost
) -> float:
    """Returns the seconds of all weight gradients, and of an update after them.

    Args:
        disk: Disk that has the weights.
        passed: Bytes of weights that are passed over as a whole.
        gathered: Bytes of weights of which some rows are read.
        state: Bytes of the optimizer's state for both.
        m: Microbatches of a minibatch.
        cost: Costs of the layer in memory.
    """
    adding = disk.seconds(passed * (m - 1), passed * m)
    updated = passed + (gathered if state else 0)
    update = disk.seconds(updated + passed + state, updated + state)
    return max(m * cost.backward_weight, adding) + update


def _early_update_seconds(
    disk: Disk, passed: int, gathered: int, state: float, m: int, cost: LayerCost
) -> float:
    """Returns these seconds if most is updated within the last microbatch.

    The gradient of the layer's input has read the weights by then. Gathered weights are
    updated afterwards. For the arguments see :func:`_update_seconds`.
    """
    own = state * passed / (passed + gathered)
    others = gathered + state - own if state else 0
    adding, known = 0.0, 0
    if m > 1:
        adding, known = disk.seconds(passed * (m - 2), passed * (m - 1)), passed
    last = disk.seconds(known + own, passed + own)
    total = max((m - 1) * cost.backward_weight, adding)
    total += max(cost.backward_weight, last)
    return total + disk.seconds(others, others)


def streamed_profile(
    profile: Profile,
    positions: Sequence[int],
    disk: Disk | None,
    n_microbatches: int,
    segment_bytes: float = MOST_BYTES,
    has_replicas: bool = False,
) -> Profile:
    """Returns a profile of a model with some layers' weights on disk.

    Args:
        profile: Profile at the size of microbatch in use.
        positions: Positions of these layers.
        disk: Disk that has the weights; only needed if there are positions.
        n_microbatches: Microbatches of a minibatch.
        segment_bytes: Bytes of a segment.
        has_replicas: Whether gradients are exchanged before they are used.
    """
    if not positions:
        return profile
    layers = list(profile.layers)
    for i in positions:
        layers[i] = streamed_cost(
            layers[i], disk, n_microbatches, segment_bytes, has_replicas
        )
    return replace(profile, layers=layers)
