"""Error feedback: what a replica's encodings have lost, for its next gradients.

What an exchange loses replaces what the last one lost only when it is over, and not if
a number was not finite: that step is no step, and may be skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import chainer
import numpy as np
from mpi4py import MPI

from data_parallel import json_arrays
from data_parallel.arrays import HOST, Spec
from data_parallel.layout import Segment
from divisible.communication.collectives import wait_for_all
from divisible.communication.errors import in_words
from divisible.user_warnings import warn_user

#: The keys by which residuals are saved: whose they are, and they themselves.
RESIDUAL_KEYS = _ORIGIN, _ARRAY = "residual_of", "residual"
#: Of a rank that has loaded no snapshot: of how many ranks it was, and of which.
NOT_LOADED = (0, 0)


class Residuals:
    """The residuals of one replica, in the units of its gradients.

    Attributes:
        by_name: Flat float32 arrays, by the name of the array, on the device of the
            last exchange.
        origin: Of how many ranks the snapshot was that they come from, and of which
            one; `NOT_LOADED` if none was loaded since the last exchange.
        spare: Arrays as those of ``by_name``, in which an exchange writes what it
            loses.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self.origin = NOT_LOADED
        self.spare: dict[str, Any] = {}
        self._device = HOST

    def check_loaded(self, specs: Sequence[Spec]) -> None:
        """Sees that what was loaded is of these arrays.

        Raises:
            ValueError: If it is not.
        """
        for name, size in ((spec.name, spec.size) for spec in specs):
            kept = self.by_name.get(name)
            if self.origin != NOT_LOADED and kept is not None and kept.size != size:
                raise ValueError(
                    f"the snapshot has error feedback of {kept.size} elements for array"
                    f" {name}, which has {size}: it is of another model"
                )

    def open(self, specs: Sequence[Spec], device: Any = HOST) -> OpenResiduals:
        """Begins an exchange, of arrays that are on a device."""
        for kept in (self.by_name, self.spare):
            if device != self._device:
                kept.update({name: device.send(kept[name]) for name in kept})
            for spec in specs:
                if spec.name not in kept or kept[spec.name].size != spec.size:
                    kept[spec.name] = device.xp.zeros(spec.size, np.float32)
        self._device = device
        return OpenResiduals(self, [spec.name for spec in specs])

    def serialize(self, serializers: Mapping[str, Any], comm: MPI.Comm) -> None:
        """Reads or writes them, and of which rank they are.

        Args:
            serializers: By the name of the array where its residual goes.
            comm: Of the ranks.
        """
        found = {}
        for name, serializer in serializers.items():
            residual = self.by_name.get(name)
            state = None if residual is None else [comm.size, comm.rank]
            state = json_arrays.serialize(serializer, _ORIGIN, state)
            if state is None:
                # Written without error feedback, or before the first exchange.
                continue
            if isinstance(serializer, chainer.Deserializer):
                n_ranks, rank = state
                self.origin, found[name] = (n_ranks, rank), _read(serializer)
            else:
                serializer(_ARRAY, residual)
        if any(isinstance(each, chainer.Deserializer) for each in serializers.values()):
            self.by_name, self._device = found, HOST

    def load_means(self, replicas: Sequence[Mapping[str, Any]], comm: MPI.Comm) -> None:
        """Reads those of all replicas, of which there were more or fewer.

        Each rank gets the mean, so that nothing is lost of what was lost.

        Args:
            replicas: For each one that there was as the ``serializers`` of
                :meth:`serialize`.
            comm: Of the ranks.
        """
        for name in self.by_name:
            total = sum(_read(each[name]) for each in replicas)
            self.by_name[name] = total / np.float32(len(replicas))
        # As if each rank had its own: there is nothing to share out.
        self.origin = comm.size, comm.rank

    def scale(self, factor: float) -> None:
        """Multiplies them, as the gradients are from now on."""
        with self._device.create_context():
            for residual in self.by_name.values():
                residual *= np.float32(factor)

    def share_out(
        self,
        names: Sequence[str],
        comm: MPI.Comm,
        origins: Sequence[tuple[int, int]],
        timeout: float,
    ) -> None:
        """Gives each rank its part of what was loaded; a call of all ranks.

        Where none has loaded, or each its own, all go on with what they have. With
        another number of ranks each gets the mean, so that nothing is lost of what was
        lost.

        Args:
            names: Of the arrays of the exchange that was opened, the same on all ranks.
            comm: Of the ranks.
            origins: Of all of them.
            timeout: Seconds to wait for another rank.
        """
        self.origin = NOT_LOADED
        own = [(comm.size, rank) for rank in range(comm.size)]
        if list(origins) in ([NOT_LOADED] * comm.size, own):
            return
        holders: dict[int, int] = {}
        for rank, (n, of) in enumerate(origins):
            if n:
                holders.setdefault(of, rank)
        n_before = max(n for n, _ in origins)
        missing = sorted(set(range(n_before)) - set(holders))
        if missing and comm.rank == 0:
            warn_user(
                f"what error feedback has kept of {in_words(missing)} of {n_before}"
                f" was not loaded: the mean of the others stands for it. Load on each"
                f" rank a snapshot that another rank has written",
            )
        for name in names:
            total = HOST.send(self.by_name[name])
            if comm.rank not in holders.values():
                total[:] = 0
            request = comm.Iallreduce(MPI.IN_PLACE, total)
            wait_for_all(comm, request, timeout, "to share out what was loaded")
            total /= len(holders)
            self.by_name[name] = self._device.send(total)


class OpenResiduals:
    """The residuals of the arrays of one exchange, by their numbers.

    Args:
        kept: Has them.
        names: Of the arrays.
    """

    def __init__(self, kept: Residuals, names: Sequence[str]) -> None:
        self._kept, self.names = kept, names

    def before(self, i: int) -> Any:
        """Returns what is added to an array."""
        return self._kept.by_name[self.names[i]]

    def after(self, i: int) -> Any:
        """Returns where to write what is lost of an array."""
        return self._kept.spare[self.names[i]]

    def lose(self, segment: Segment, lost: Any) -> None:
        """Writes what is lost of some elements."""
        self.after(segment.array)[segment.elements] = lost

    def keep(self) -> None:
        """Ends the exchange: what it has lost counts from now on."""
        now, then = self._kept.spare, self._kept.by_name
        for name in self.names:
            now[name], then[name] = then[name], now[name]


def _read(serializer: Any) -> np.ndarray:
    # A copy, for it is written to, and whoever has read it may read again.
    return np.array(serializer(_ARRAY, None), np.float32)
