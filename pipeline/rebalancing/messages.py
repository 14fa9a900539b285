"""Sends arrays by key from the ranks that have them to the ranks that need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from divisible.communication.signatures import Tensor
from divisible.communication.tags import MOVED_LAYERS_CHANNEL
from divisible.communication.transport import Receiver, Transport
from divisible.streaming.directories import usable_directory
from divisible.streaming.mapped import MappedArray, mapped_array, parts_of
from pipeline.calls.ranks import Ranks

# Smaller arrays are sent together with the keys.
_LEAST_BYTES = 256


class Parcel(NamedTuple):
    """The description of a message from one rank to another, with its small arrays.

    Attributes:
        small: Small arrays, and arrays that are not plain numbers, by key.
        large: Keys of the large arrays, in the order in which they are sent.
        on_disk: Shapes and dtypes of arrays on disk, which are sent in parts after the
            large arrays.
        n_bytes: Bytes of all arrays.
        n_bytes_in_memory: Bytes of the arrays in memory.
    """

    small: Mapping[str, np.ndarray]
    large: list[str]
    on_disk: Mapping[str, tuple[tuple[int, ...], str]]
    n_bytes: int
    n_bytes_in_memory: int

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Parcel:
        """Returns the description of a message with these arrays."""
        on_disk = {
            key: (array.shape, array.dtype.str)
            for key, array in arrays.items()
            if mapped_array(array) is not None
        }
        others = {key: array for key, array in arrays.items() if key not in on_disk}
        return cls(
            {key: array for key, array in others.items() if not _is_large(array)},
            [key for key, array in others.items() if _is_large(array)],
            on_disk,
            sum(array.nbytes for array in arrays.values()),
            sum(array.nbytes for array in others.values()),
        )


def _is_large(array: np.ndarray) -> bool:
    return array.dtype.kind in "fiub" and array.nbytes >= _LEAST_BYTES


def files_for(parcels: Iterable[Parcel]) -> dict[str, MappedArray]:
    """Makes files for the arrays that come from disks, by key.

    Raises:
        StoreError: If the disk has no room for them.
    """
    return {
        key: MappedArray(shape, dtype, usable_directory(), f"{key}, on its way")
        for parcel in parcels
        for key, (shape, dtype) in parcel.on_disk.items()
    }


def exchange(
    ranks: Ranks,
    outgoing: Mapping[int, Mapping[str, np.ndarray]],
    parcels: Mapping[int, Parcel],
    files: Mapping[str, MappedArray],
) -> dict[str, np.ndarray]:
    """Sends arrays to other ranks of the pipeline, and returns those received.

    Args:
        ranks (Ranks): All ranks of the pipeline.
        outgoing: Arrays for each rank, by key; they must not change meanwhile.
        parcels: Description of the message from each rank.
        files: Files from :func:`files_for`, for the arrays on disk.

    Returns:
        The arrays by key, each in memory of its own, or in one of the files.

    Raises:
        StallError: If another rank does not answer in time, or its script has ended.
    """
    transport = Transport(ranks.comm, ranks.timeout)
    transport.watch = ranks.calls.check
    for rank, arrays in sorted(outgoing.items()):
        parcel = Parcel.of(arrays)
        sender = transport.sender(MOVED_LAYERS_CHANNEL, rank)
        if parcel.large:
            sender.send(0, [Tensor(arrays[key]) for key in parcel.large])
        for key in parcel.on_disk:
            for part in parts_of(arrays[key]):
                sender.send(0, [Tensor(part)])
    found: dict[str, np.ndarray] = {}
    receivers = []
    for rank, parcel in sorted(parcels.items()):
        found.update(parcel.small)
        receiver = transport.receiver(MOVED_LAYERS_CHANNEL, rank)
        receivers.append(receiver)
        if parcel.large:
            message = _receive(receiver)
            found.update(zip(parcel.large, (array for array, *_ in message)))
        for key in parcel.on_disk:
            for part in parts_of(files[key].array, written=True):
                part[...] = _receive(receiver)[0].array
            found[key] = files[key].array
    transport.flush()
    for receiver in receivers:
        receiver.close()
    return found


def _receive(receiver: Receiver) -> Sequence[Tensor]:
    receiver.post(0)
    return receiver.receive(0, "layers that move")


def total_bytes(parcels: Any) -> int:
    """Returns the bytes of all messages between ranks."""
    return sum(parcel.n_bytes for each in parcels for parcel in each.values())
