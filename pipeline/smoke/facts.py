"""Facts about ranks and links, as they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RankFacts:
    """The facts of one rank, measured while all ranks compute.

    Attributes:
        rank: The rank.
        host: Name of its host.
        versions: Versions of Python and packages by name.
        variables: Environment variables about threads.
        threads: Number of threads of a matrix product.
        cores: Numbers of the cores that the rank may use; empty if unknown.
        chainer_seconds: Seconds of a product of matrices by NumPy, as in Chainer.
        kernel_seconds: Seconds of the same product by the kernels.
        cpu_share: Seconds of CPU time in a second, for each thread, from 0 to 1.
        copied_bytes: Bytes per second that a copy in memory reads and writes.
        memory: Free bytes of each place with a limit: its words, and its bytes, by a
            name that ranks in the same place share.
        shared_memory: Free bytes of ``/dev/shm``; ``None`` without one.
        disk_read: Bytes per second that the disk reads; ``None`` where another rank of
            the host measures.
        disk_write: Bytes per second that the disk writes.
        disk_error: Why the disk could not be measured.
        clock: Seconds by which the host's clock is ahead of the others.
        thread_level: Level of threads that MPI supports.
    """

    rank: int
    host: str
    versions: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    cores: tuple[int, ...] = ()
    chainer_seconds: float = 0.0
    kernel_seconds: float = 0.0
    cpu_share: float = 1.0
    copied_bytes: float = 0.0
    memory: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    shared_memory: int | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    disk_error: str = ""
    clock: float = 0.0
    thread_level: int = 3


@dataclass(frozen=True)
class LinkFacts:
    """The facts of the link between two ranks.

    Attributes:
        first: One rank.
        second: The other rank.
        latency: Seconds of a message of one byte, one way.
        bandwidth: Bytes per second of a large message.
    """

    first: int
    second: int
    latency: float
    bandwidth: float
