"""The number of elements from which on fewer bits are faster than float32, measured.

The time that fewer bits save on the wire grows with the elements. The time of coding
has a part that does not grow. So several sizes are measured. The result is the smallest
size from which on all larger ones are faster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from data_parallel.settings import Settings
from divisible.communication.collectives import as_mpi, wait_for_all
from divisible.user_warnings import warn_user

#: Numbers of elements that are measured.
SIZES = tuple(2**n for n in range(12, 23, 2))
_ROUNDS = 3
#: A size that takes longer, in seconds, is the last one: larger ones gain as much.
_LONG = 0.3
# A number of elements that no bucket has.
_NEVER = 2**62

_keyvals: list[int] = []


def known(comm: MPI.Comm) -> dict[Any, int | None]:
    """Returns the results of a communicator, to be added to.

    Keys are the exchange dtype and the number of ranks of a node.
    """
    if not _keyvals:
        _keyvals.append(MPI.Comm.Create_keyval())
    found = comm.Get_attr(_keyvals[0])
    if found is None:
        found = {}
        comm.Set_attr(_keyvals[0], found)
    return found


def minimum(
    comm: Any,
    settings: Settings,
    local_size: int | None,
    timeout: float,
    given: int | None,
    make: Callable[..., Any],
) -> int:
    """Returns the least number of elements that an exchange codes; a call of all ranks.

    Args:
        comm: An mpi4py communicator of the ranks, or a ChainerMN one.
        settings: Settings of the exchange.
        local_size: Number of ranks of a node; ``None`` for all those of a host.
        timeout: Seconds that a wait for another rank may take.
        given: The number that the user has given; ``None`` to measure it.
        make: Makes an exchange, as :class:`~data_parallel.Exchange` does.
    """
    if given is not None or settings.is_oyama2017 or settings.wire.name == "fp32":
        return int(given or 0)
    mpi_comm = as_mpi(comm)
    found = between(mpi_comm, settings.wire.name, local_size, timeout, make)
    if found is None and mpi_comm.rank == 0:
        warn_of_never(settings.dtype_name, mpi_comm.size)
    return _NEVER if found is None else found


def warn_of_never(exchange_dtype: str, n_ranks: int) -> None:
    """Warns that all arrays are sent in float32."""
    warn_user(
        f"{exchange_dtype!r} is not faster than 'fp32' between these {n_ranks} ranks,"
        f" for up to {SIZES[-1]} elements: all goes in float32; give minimum=0 to send"
        f" {exchange_dtype!r} nevertheless",
    )


def between(
    comm: MPI.Comm,
    exchange_dtype: str,
    local_size: int | None,
    timeout: float,
    make: Callable[..., Any],
) -> int | None:
    """Returns the least number of elements that is faster in a dtype; measured once.

    Args:
        comm: Communicator of the ranks, which stores the result.
        exchange_dtype: Name of the dtype; see :class:`~data_parallel.Exchange`.
        local_size: Number of ranks of a node; ``None`` for all those of a host.
        timeout: Seconds that a wait for another rank may take.
        make: Makes an exchange, as :class:`~data_parallel.Exchange` does.
    """
    answers, key = known(comm), (exchange_dtype, local_size)
    if key not in answers:
        options = {"local_size": local_size, "minimum": 0, "timeout": timeout}
        with (
            make(comm, exchange_dtype="fp32", **options) as fp32,
            make(comm, exchange_dtype=exchange_dtype, **options) as coded,
        ):
            found = None
            # Within one node nothing is coded.
            if len(fp32.nodes) > 1:
                exchanges = [fp32, coded]
                found = search(lambda n: seconds(exchanges, n), fp32.comm, timeout)
        answers[key] = found
    return answers[key]


def seconds(exchanges: Sequence[Any], n: int) -> list[float]:
    """Returns the seconds of each exchange on this rank, the shortest of several."""
    array = np.ones(n, np.float32)
    times: list[list[float]] = [[] for _ in exchanges]
    for _ in range(1 + _ROUNDS):
        for exchange, its in zip(exchanges, times):
            start = time.perf_counter()
            exchange.mean([array])
            its.append(time.perf_counter() - start)
    # The first exchange allocates buffers, and does not count.
    return [min(its[1:]) for its in times]


def search(
    seconds_of: Callable[[int], Sequence[float]], comm: MPI.Comm, timeout: float
) -> int | None:
    """Returns the smallest size from which on the second of two is faster.

    Args:
        seconds_of: Returns the two times for a number of elements.
        comm: Communicator of the ranks, of which the slowest counts.
        timeout: Seconds that a wait for another rank may take.
    """
    gains: list[tuple[int, bool]] = []
    for n in SIZES:
        slowest = np.array(seconds_of(n))
        request = comm.Iallreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        wait_for_all(comm, request, timeout, "to measure")
        gains.append((n, bool(slowest[1] < slowest[0])))
        if slowest[0] > _LONG:
            break
    found = None
    for n, gain in reversed(gains):
        if not gain:
            break
        found = n
    return found
