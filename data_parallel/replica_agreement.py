"""Agreement of replicas: the same model, optimizer and values on all of them.

Replicas that begin with different values, or drift apart later, train on without an
error: each follows the mean gradient from its own values. So they compare checksums::

    when                                    names, hyperparameters, values   states
    first update, after a load,
    after parameters have got a shape       yes                              yes
    after each check_every updates          yes

Different states lead to different values, which are compared regularly.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import chainer
import numpy as np
from mpi4py import MPI

from data_parallel.arrays import HOST
from data_parallel.parameters import NamedParameter
from data_parallel.replica_state import (
    difference_in_words,
    differing_states,
    digests_of,
)
from divisible.communication.collectives import (
    all_gather,
    broadcast_object,
    wait_for_all,
)
from divisible.communication.errors import DisagreementError, in_words
from divisible.optimizer_hooks import named_hooks
from divisible.optimizer_wrapper import innermost
from divisible.user_warnings import warn_user


def description(optimizer: Any, parameters: Sequence[NamedParameter]) -> list[str]:
    """Returns the facts in which replicas must agree, other than values, as lines.

    Args:
        optimizer: Optimizer, set up with the model.
        parameters: Parameters of the model.
    """
    lines = [f"the loss scale {optimizer._loss_scale}"]
    for name, param in parameters:
        lines.append(f"parameter {name} of {param.shape} and {param.dtype}")
    common: dict[str, Any] = {}
    hyperparam = getattr(optimizer, "hyperparam", None)
    if hyperparam is not None:
        common = hyperparam.get_dict()
        # The innermost optimizer counts, such as MomentumSGD in MixedPrecision.
        lines += _settings(type(innermost(optimizer)).__name__, common)
    for name, param in parameters:
        rule = param.update_rule
        own = (
            {}
            if rule is None or rule.hyperparam is None
            else rule.hyperparam.get_dict()
        )
        differing = {k: v for k, v in own.items() if common.get(k, own) != v}
        lines += _settings(f"the update rule of {name}", differing)
    for _, hook in named_hooks(optimizer):
        lines.append(f"the hook {type(hook).__name__}")
        lines += _settings(type(hook).__name__, vars(hook))
    return lines


def _settings(of: str, values: Any) -> list[str]:
    """Returns a line for each setting that is a number or text."""
    plain = (bool, int, float, str, np.generic, type(None))
    return [
        f"{name}={value!r} of {of}"
        for name, value in sorted(dict(values).items())
        if isinstance(value, plain)
    ]


def checksums(parameters: Sequence[NamedParameter]) -> np.ndarray:
    """Returns a checksum of the values of each parameter, int64."""
    found = []
    for _, param in parameters:
        checksum = 0
        for part in _parts(param):
            checksum = zlib.crc32(_bytes_of(part), checksum)
        found.append(checksum)
    return np.array(found, np.int64)


def differing(
    comm: MPI.Comm, parameters: Sequence[NamedParameter], timeout: float
) -> dict[int, list[int]]:
    """Returns the positions of parameters that differ, with the ranks that differ.

    A call of all ranks.

    Args:
        comm: Communicator of the ranks.
        parameters: Parameters, equal on all ranks except for their values.
        timeout: Seconds to wait for another rank.
    """
    said = all_gather(comm, checksums(parameters), timeout, "to compare the parameters")
    return _differing(said)


def _differing(checksums_of_ranks: Sequence[np.ndarray]) -> dict[int, list[int]]:
    said = np.array(checksums_of_ranks)
    return {
        int(i): np.flatnonzero(said[:, i] != said[0, i]).tolist()
        for i in np.flatnonzero((said != said[0]).any(axis=0))
    }


class ReplicaAgreement:
    """The agreement of replicas, which is checked now and then.

    Args:
        check_every: Number of updates after which they are compared.

    Attributes:
        n_updates: Number of updates so far.

    Raises:
        ValueError: If ``check_every`` is not positive.
    """

    def __init__(self, check_every: int) -> None:
        if check_every < 1:
            raise ValueError(f"check_every must be 1 or more, not {check_every}")
        self._check_every = check_every
        self._names: set[str] = set()
        self.n_updates = 0

    def forget(self) -> None:
        """Makes the next update compare the replicas like the first one."""
        self._names = set()

    @property
    def is_known(self) -> bool:
        """Whether replicas have agreed since the start, or since :meth:`forget`."""
        return bool(self._names)

    def accept(self, parameters: Sequence[NamedParameter]) -> None:
        """Records parameters for which no comparison is needed any more."""
        self._names = {name for name, _ in parameters}

    def count(self) -> None:
        """Counts an update."""
        self.n_updates += 1

    def is_due(self, parameters: Sequence[NamedParameter]) -> bool:
        """Returns whether the next update must compare the replicas."""
        is_time = self.n_updates % self._check_every == 0
        return is_time or self._is_new(parameters)

    def agree(
        self,
        exchange: Any,
        optimizer: Any,
        parameters: Sequence[NamedParameter],
        serialize: Callable[[Any], None],
    ) -> bool:
        """Compares the replicas, and counts an update; a call of all ranks.

        Args:
            exchange: Exchange between the ranks.
            optimizer: Optimizer, set up with the model.
            parameters: Parameters of the model.
            serialize: Writes the state of the optimizer and of the exchange.

        Returns:
            Whether the gradients belong to the present values of the replicas.

        Raises:
            DisagreementError: If the replicas have different models or states, or have
                drifted apart.
        """
        self.count()
        comm, timeout = exchange.comm, exchange.timeout
        about = f"replicas to compare before update number {self.n_updates}"
        exchange.compare([about, *description(optimizer, parameters)])
        is_new = self._is_new(parameters)

        def gather() -> list[tuple[Any, Any]]:
            states = digests_of(optimizer, serialize) if is_new else {}
            mine = checksums(parameters), states
            return all_gather(comm, mine, timeout, "to compare the replicas")

        said = gather()
        found = _differing([values for values, _ in said])
        # Master weights follow their parameters, so they do not count separately.
        _check_states(said, [parameters[i].name for i in found])
        self.accept(parameters)
        if not found:
            return True
        if not is_new:
            raise DisagreementError(self._drift(parameters, found))
        give_values_of_rank_0(comm, parameters, found, timeout)
        _check_states(gather())
        return False

    def of_rank_0(self, exchange: Any, value: Any) -> Any:
        """Returns the value that rank 0 has; a call of all ranks."""
        return broadcast_object(exchange.comm, value, 0, exchange.timeout)

    def _is_new(self, parameters: Sequence[NamedParameter]) -> bool:
        return {name for name, _ in parameters} != self._names

    def _drift(
        self, parameters: Sequence[NamedParameter], found: dict[int, list[int]]
    ) -> str:
        first = min(found)
        return (
            f"before update number {self.n_updates} {len(found)} of {len(parameters)}"
            f" parameters differ between the replicas, the first of them"
            f" {parameters[first].name}: on {in_words(found[first])} it is not that of"
            f" rank 0. Something changes parameters on one rank alone, such as a hook"
            f" or an extension"
        )


def _check_states(
    said: Sequence[tuple[Any, Any]], left_out: Sequence[str] = ()
) -> None:
    states = [theirs for _, theirs in said]
    unlike = differing_states(states, left_out)
    if unlike:
        raise DisagreementError(
            f"the states of the replicas' optimizers differ: in the terms of a"
            f" snapshot, {difference_in_words(states, unlike[0])}"
            f"{_and_more(len(unlike) - 1)}. Load the same snapshot on every rank, or on"
            f" none"
        )


def _and_more(n: int) -> str:
    return f", and {n} more" if n else ""


def give_values_of_rank_0(
    comm: MPI.Comm,
    parameters: Sequence[NamedParameter],
    differing: dict[int, list[int]],
    timeout: float,
) -> None:
    """Replaces values that differ by those of rank 0, with a warning.

    Args:
        comm: Communicator of the ranks.
        parameters: Parameters of the replicas.
        differing: Result of :func:`differing`.
        timeout: Seconds to wait for another rank.
    """
    first = min(differing)
    if comm.rank == 0:
        warn_user(
            f"{len(differing)} parameters differ between the replicas, the first of"
            f" them {parameters[first].name} on {in_words(differing[first])}: all get"
            f" the values of rank 0, and the gradients of this update, which are those"
            f" of other values, are dropped. Seed all ranks alike, or load the same"
            f" file, to begin with equal ones",
        )
    broadcast_values(comm, parameters, differing, timeout)


def broadcast_values(
    comm: MPI.Comm,
    parameters: Sequence[NamedParameter],
    positions: Iterable[int],
    timeout: float,
) -> None:
    """Replaces values by those of rank 0; a call of all ranks.

    Args:
        comm: Communicator of the ranks.
        parameters: Parameters of the replicas.
        positions: Positions of the parameters to replace.
        timeout: Seconds to wait for another rank.
    """
    for i in sorted(positions):
        param = parameters[i].param
        what = f"to give values to {parameters[i].name}"
        for part in _parts(param, written=True):
            # Bytes are sent, so memory layouts and dtypes may be any.
            values = _bytes_of(part)
            wait_for_all(comm, comm.Ibcast([values, MPI.BYTE], 0), timeout, what)
            with chainer.using_device(param.device):
                values = values.view(part.dtype).reshape(part.shape)
                part[...] = param.device.send(values)


def _parts(param: Any, written: bool = False) -> Iterable[Any]:
    """Returns the values of a parameter, those on disk a few MiB at a time."""
    if getattr(param, "is_streamed", False):
        return param.parts_of(param.array, written)
    return [param.array]


def _bytes_of(array: Any) -> np.ndarray:
    """Returns the bytes of an array on any device, without a copy if possible."""
    return np.ascontiguousarray(HOST.send(array)).reshape(-1).view(np.uint8)
