"""Disks for what does not fit into memory: their bandwidths, and what waits for them.

A streamed layer (:class:`divisible.streaming.Streamed`) passes over its files::

                         of a microbatch            of a minibatch
    forward              read W
    input gradients      read W
    weight gradients     read gW, write gW          the first one only writes,
    with the update                                 the last one reads gW, state and
                                                    writes W, state

Where replicas exchange gradients, the last one writes its own as well, and the update
follows in a pass of its own, which reads W, gW and the state. Of an embedding a
microbatch reads and writes some rows, which take no time to speak of; the update passes
over all of it if it has a state.

A pass goes on beside the computation, so it costs what it takes longer than that.
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
#: Those of which a microbatch needs some rows.
GATHERED = (L.EmbedID,)
#: Bytes of the largest segment that is tried where nobody says otherwise: large enough
#: that a disk reads it at its full speed, and that its products take BLAS to its own.
MOST_BYTES = 32 * 2**20
#: Bytes of the smallest one.
LEAST_BYTES = 2**20
#: How many segments a rank may have in memory at a time. An update with two arrays of
#: state passes through four files: of each a segment is computed with, and the next one
#: read; four are being written, and what an update rule or an initializer computes
#: meanwhile takes as much again as four.
IN_MEMORY = 16
# The part of its memory that a rank's segments have, one in so many.
_SHARE = 8


def segment_bytes(memory: float) -> float:
    """Returns how large a segment is where a rank may use so many bytes.

    Example:
        >>> segment_bytes(2**30) / 2**20
        8.0
    """
    return min(max(memory / (_SHARE * IN_MEMORY), LEAST_BYTES), MOST_BYTES)


def streamable_bytes(
    links: Iterable[chainer.Link], kinds: Sequence[type] = STREAMABLE
) -> int:
    """Returns the bytes of the weights that can be on disk, of links with arrays."""
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
    """How fast a disk reads and writes what memory has no room for.

    :func:`divisible.streaming.measure_disk` measures it.

    Attributes:
        read: Bytes per second.
        write: Bytes per second.

    Raises:
        TypeError: If a value is no number.
        ValueError: If one is not positive and finite.

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
        """Returns what it takes to read and write so many bytes."""
        return n_read / self.read + n_written / self.write


def streamed_cost(
    cost: LayerCost,
    disk: Disk,
    n_microbatches: int,
    segment_bytes: float = MOST_BYTES,
    has_replicas: bool = False,
) -> LayerCost:
    """Returns what a layer costs if what can be of its weights is on disk.

    Args:
        cost: Of the layer in memory.
        disk: Where the weights are.
        n_microbatches: Of a minibatch, which share the update's passes.
        segment_bytes: Of a segment; what is smaller is one.
        has_replicas: Whether gradients are exchanged before they are used.

    Returns:
        LayerCost: The same if none of it can be streamed.

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
    """Returns the seconds of a minibatch's weight gradients, and an update after them.

    Args:
        disk: Where the weights are.
        passed: Bytes of weights that are passed over as a whole.
        gathered: Bytes of those of which some rows are read.
        state: Bytes of the optimizer's state, of both.
        m: Microbatches of a minibatch.
        cost: Of the layer in memory.
    """
    adding = disk.seconds(passed * (m - 1), passed * m)
    updated = passed + (gathered if state else 0)
    update = disk.seconds(updated + passed + state, updated + state)
    return max(m * cost.backward_weight, adding) + update


def _early_update_seconds(
    disk: Disk, passed: int, gathered: int, state: float, m: int, cost: LayerCost
) -> float:
    """Returns the same with the update of what is passed over in the last microbatch.

    It has read the weights for the gradient of its input.
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
        profile: At the size of microbatch in use.
        positions: Of these layers.
        disk: Where they are; only needed if there are some.
        n_microbatches: Of a minibatch.
        segment_bytes: Of a segment.
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
