"""Error feedback: a replica's rounding errors, to be added to its next gradients.

The errors of an exchange replace those of the last one only when it is over. They do
not if a number was not finite, because that update may be skipped.
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

#: The keys of saved residuals: their origin, and the residuals themselves.
RESIDUAL_KEYS = _ORIGIN, _ARRAY = "residual_of", "residual"
#: Origin on a rank that has loaded no snapshot. Origins are a number of ranks and a
#: rank.
NOT_LOADED = (0, 0)


class Residuals:
    """The residuals of one replica, in the units of its gradients.

    Attributes:
        by_name: Flat float32 arrays, by the name of the array, on the device of the
            last exchange.
        origin: Number of ranks of the loaded snapshot, and the rank that wrote it;
            `NOT_LOADED` if none was loaded since the last exchange.
        spare: Arrays like those of ``by_name``, into which an exchange writes its
            errors.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}
        self.origin = NOT_LOADED
        self.spare: dict[str, Any] = {}
        self._device = HOST

    def check_loaded(self, specs: Sequence[Spec]) -> None:
        """Checks that loaded residuals belong to these arrays.

        Raises:
            ValueError: If they do not.
        """
        for name, size in ((spec.name, spec.size) for spec in specs):
            kept = self.by_name.get(name)
            if self.origin != NOT_LOADED and kept is not None and kept.size != size:
                raise ValueError(
                    f"the snapshot has error feedback of {kept.size} elements for array"
                    f" {name}, which has {size}: it is of another model"
                )

    def open(self, specs: Sequence[Spec], device: Any = HOST) -> OpenResiduals:
        """Begins an exchange of arrays that are on a device."""
        for kept in (self.by_name, self.spare):
            if device != self._device:
                kept.update({name: device.send(kept[name]) for name in kept})
            for spec in specs:
                if spec.name not in kept or kept[spec.name].size != spec.size:
                    kept[spec.name] = device.xp.zeros(spec.size, np.float32)
        self._device = device
        return OpenResiduals(self, [spec.name for spec in specs])

    def serialize(self, serializers: Mapping[str, Any], comm: MPI.Comm) -> None:
        """Loads or saves the residuals, with their origin.

        Args:
            serializers: Serializers by name of the array.
            comm: Communicator of the ranks.
        """
        found = {}
        for name, serializer in serializers.items():
            residual = self.by_name.get(name)
            state = None if residual is None else [comm.size, comm.rank]
            state = json_arrays.serialize(serializer, _ORIGIN, state)
            if state is None:
                # The file was saved without error feedback, or before an exchange.
                continue
            if isinstance(serializer, chainer.Deserializer):
                n_ranks, rank = state
                self.origin, found[name] = (n_ranks, rank), _read(serializer)
            else:
                serializer(_ARRAY, residual)
        if any(isinstance(each, chainer.Deserializer) for each in serializers.values()):
            self.by_name, self._device = found, HOST

    def forget(self) -> None:
        """Drops the residuals."""
        self.by_name, self.origin = {}, NOT_LOADED

    def load_means(self, replicas: Sequence[Mapping[str, Any]], comm: MPI.Comm) -> None:
        """Loads the residuals of all former replicas, which were more or fewer.

        Each rank gets the mean, so that no rounding error is lost.

        Args:
            replicas: For each former replica its serializers, as for :meth:`serialize`.
            comm: Communicator of the ranks.
        """
        for name in self.by_name:
            total = sum(_read(each[name]) for each in replicas)
            self.by_name[name] = total / np.float32(len(replicas))
        # Each rank counts as having its own residuals, so none are shared out.
        self.origin = comm.size, comm.rank

    def scale(self, factor: float) -> None:
        """Multiplies the residuals by a factor, as the gradients are from now on."""
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
        """Gives each rank its part of loaded residuals; a call of all ranks.

        If no rank has loaded any, or each its own, nothing changes. After a change of
        the number of ranks each gets the mean, so that no rounding error is lost.

        Args:
            names: Names of the arrays of the open exchange, equal on all ranks.
            comm: Communicator of the ranks.
            origins: Origins of all ranks' residuals.
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
    """The residuals of the arrays of one exchange, by position.

    Args:
        kept: The residuals of the replica.
        names: Names of the arrays.
    """

    def __init__(self, kept: Residuals, names: Sequence[str]) -> None:
        self._kept, self.names = kept, names

    def before(self, i: int) -> Any:
        """Returns the residual that is added to an array."""
        return self._kept.by_name[self.names[i]]

    def after(self, i: int) -> Any:
        """Returns the array for the new rounding errors of an array."""
        return self._kept.spare[self.names[i]]

    def lose(self, segment: Segment, lost: Any) -> None:
        """Stores the rounding errors of some elements."""
        self.after(segment.array)[segment.elements] = lost

    def keep(self, are_there: Sequence[bool]) -> None:
        """Ends the exchange: its rounding errors are used from now on.

        Args:
            are_there: For each array whether any rank had it. The mean of another one
                is not used, so that its residual has yet to be added to a gradient.
        """
        now, then = self._kept.spare, self._kept.by_name
        for name, is_there in zip(self.names, are_there):
            if is_there:
                now[name], then[name] = then[name], now[name]


def _read(serializer: Any) -> np.ndarray:
    # A copy, because it is written to, and the serializer may read the array again.
    return np.array(serializer(_ARRAY, None), np.float32)
