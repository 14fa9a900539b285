"""Arrays by key, from the ranks that have them to those that want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from divisible.communication.signatures import Tensor
from divisible.communication.tags import MOVED_LAYERS_CHANNEL
from divisible.communication.transport import Transport
from pipeline.ranks import Ranks

# Below it an array goes with the keys.
_LEAST_BYTES = 256


class Parcel(NamedTuple):
    """A message from one rank to another, without the large arrays.

    Attributes:
        small: By key what is small, or no plain numbers.
        large: The keys of the others, in the order in which they are sent.
        n_bytes: Of all.
    """

    small: Mapping[str, np.ndarray]
    large: list[str]
    n_bytes: int

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Parcel:
        """Packs arrays."""
        large = [key for key, array in arrays.items() if _is_large(array)]
        small = {key: array for key, array in arrays.items() if not _is_large(array)}
        return cls(small, large, sum(array.nbytes for array in arrays.values()))


def _is_large(array: np.ndarray) -> bool:
    return array.dtype.kind in "fiub" and array.nbytes >= _LEAST_BYTES


def exchange(
    ranks: Ranks,
    outgoing: Mapping[int, Mapping[str, np.ndarray]],
    parcels: Mapping[int, Parcel],
) -> dict[str, np.ndarray]:
    """Sends arrays to other ranks of the pipeline, and returns what comes from them.

    Args:
        ranks (Ranks): Of the pipeline.
        outgoing: By rank what it gets, which nobody changes meanwhile.
        parcels: By rank what comes from it.

    Returns:
        By key the arrays, each in memory of its own.

    Raises:
        StallError: If another rank does not come in time, or has left.
    """
    transport = Transport(ranks.comm, ranks.timeout)
    transport.watch = ranks.calls.check
    for rank, arrays in sorted(outgoing.items()):
        parcel = Parcel.of(arrays)
        if parcel.large:
            sender = transport.sender(MOVED_LAYERS_CHANNEL, rank)
            sender.send(0, [Tensor(arrays[key]) for key in parcel.large])
    found: dict[str, np.ndarray] = {}
    receivers = []
    for rank, parcel in sorted(parcels.items()):
        found.update(parcel.small)
        if parcel.large:
            receiver = transport.receiver(MOVED_LAYERS_CHANNEL, rank)
            receiver.post(0)
            message = receiver.receive(0, "layers that move")
            found.update(zip(parcel.large, (array for array, _ in message)))
            receivers.append(receiver)
    transport.flush()
    for receiver in receivers:
        receiver.close()
    return found


def total_bytes(parcels: Any) -> int:
    """Returns the bytes of all that is sent between ranks."""
    return sum(parcel.n_bytes for each in parcels for parcel in each.values())
