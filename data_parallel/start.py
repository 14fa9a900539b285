"""The start of an exchange: the ranks' arguments, compared, and their nodes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from data_parallel.nodes import nodes_of
from data_parallel.settings import Settings, check_integer
from divisible.communication.agreement import agree
from divisible.communication.collectives import as_mpi
from divisible.communication.communicators import (
    announcement,
    duplicate,
    free_dropped,
)
from divisible.communication.errors import DisagreementError, check_timeout
from divisible.communication.wire import CHUNK

_PURPOSE = "to make the exchange"
#: Iterations at the beginning that Oyama et al. compute in float32 (section 4.2.1).
FP32_FIRST = 100


class Options(NamedTuple):
    """Arguments of an exchange that only matter between ranks.

    Attributes:
        local_size: Number of ranks of a node; ``None`` for all those of a host.
        bucket_bytes: Bytes of a bucket.
        chunk_bytes: Bytes of a chunk; ``None`` for the default.
        minimum: Least number of elements of a bucket that is coded; ``None`` to measure
            it.
        error_feedback: Whether there is error feedback.
        every: Number of exchanges after which there are new quantiles.
        fp32_first: Number of exchanges at the beginning that are in float32; ``None``
            for the strategy's default.
        timeout: Seconds that a wait may take.
    """

    local_size: int | None
    bucket_bytes: int
    chunk_bytes: int | None
    minimum: int | None
    error_feedback: bool
    every: int
    fp32_first: int | None
    timeout: float

    def bucket_and_chunk(self) -> tuple[int, int]:
        """Returns the elements of a bucket and of a chunk."""
        chunk = CHUNK if self.chunk_bytes is None else max(1, self.chunk_bytes // 4)
        return self.bucket_bytes // 4, chunk

    def n_in_fp32(self, settings: Settings) -> int:
        """Returns the number of exchanges at the beginning that are in float32.

        By default ``'oyama2017'`` has those of the paper, unless a dtype is given.
        """
        if self.fp32_first is not None:
            return self.fp32_first
        is_preset = settings.is_oyama2017 and settings.exchange_dtype is None
        return FP32_FIRST if is_preset else 0

    def check(self, settings: Settings) -> None:
        """Checks the values of the options.

        Raises:
            TypeError: If one has a wrong type.
            ValueError: If one is out of range.
        """
        check_integer("bucket_bytes", self.bucket_bytes, 1)
        check_integer("every", self.every, 1)
        for name, least in (
            ("local_size", 1),
            ("chunk_bytes", 1),
            ("minimum", 0),
            ("fp32_first", 0),
        ):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, least)
        check_timeout(self.timeout)
        if self.error_feedback and settings.is_oyama2017:
            raise ValueError(
                "strategy 'oyama2017' knows no error feedback: leave it out, or give"
                " strategy='two_roundings'"
            )


class Start(NamedTuple):
    """The result of the ranks' first comparison.

    Attributes:
        comm: Communicator of the exchange's messages.
        nodes: The ranks of each node, in rank order.
    """

    comm: MPI.Comm
    nodes: list[tuple[int, ...]]


def agree_on_start(
    comm: Any, settings: Settings, options: Options, holder: Any
) -> Start:
    """Checks this rank's arguments, and compares them with those of the others.

    Args:
        comm: A ChainerMN communicator or an mpi4py one.
        settings: Settings of the exchange.
        options: Options of the exchange.
        holder: The exchange. The new communicator is freed after it.

    Raises:
        DisagreementError: If the ranks' arguments differ, or those of another rank are
            wrong.
        TypeError, ValueError: If the arguments of this rank are wrong.
        StallError: If another rank does not call this in time.
    """
    mpi_comm = as_mpi(comm)
    refusal: Exception | None = None
    given = {**settings._asdict(), **options._asdict()}
    try:
        settings.checked()
        options.check(settings)
        # A default and an equal value do not differ.
        given["exchange_dtype"] = settings.dtype_name
        given["fp32_first"] = options.n_in_fp32(settings)
    except (TypeError, ValueError) as error:
        refusal = error
    # Timeouts may differ between ranks.
    timeout = given.pop("timeout")
    here = socket.gethostname(), announcement()
    said = agree(mpi_comm, given, refusal, timeout, _PURPOSE, here)
    nodes = _nodes([host for host, _ in said], options.local_size)
    sizes = sorted({len(ranks) for ranks in nodes})
    if settings.is_oyama2017 and len(sizes) > 1:
        raise DisagreementError(
            f"strategy 'oyama2017' needs as many ranks on each node, not {sizes}: give"
            f" local_size, or strategy='two_roundings'"
        )
    name = free_dropped([of_comm for _, of_comm in said])
    return Start(duplicate(mpi_comm, timeout, holder, name, _PURPOSE), nodes)


def _nodes(hosts: Sequence[str], local_size: int | None) -> list[tuple[int, ...]]:
    """Returns the ranks of each node, in the order of their first ranks."""
    if local_size is not None:
        return [tuple(ranks) for ranks in nodes_of(len(hosts), local_size)]
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    return [tuple(ranks) for ranks in by_host.values()]
