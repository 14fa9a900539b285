"""The machine that a plan is made for: ranks, links and disks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from divisible.files import write_json
from divisible.number_lists import numbers
from divisible.planning.disk import Disk
from divisible.planning.network import Links, Network
from divisible.planning.per_rank import PerRank, spread, spread_memory, spread_speeds
from divisible.planning.units import count, format_bytes, format_seconds
from divisible.records import (
    from_fields,
    plain_integer,
    reading_json,
    shown,
    take_kind,
)

# Number of ranks or links whose values are listed one by one.
_MOST_LISTED = 8


@dataclass(frozen=True)
class Machine:
    """The ranks that a plan is made for, and the links between them.

    Printed, a machine is a line of text.

    Attributes:
        ranks: Number of ranks.
        memory: Bytes that a rank may use; one number for all or one for each. ``None``
            for no limit.
        network: The links between ranks; infinitely fast by default.
        speeds: Speeds of the ranks, relative to that of the profile; ``None`` for 1.
        disk: The disk of each rank; ``None`` if there is none to use.

    Raises:
        TypeError: If ``ranks`` is not an integer, or another value is not a number.
        ValueError: If a value is out of range, or there are fewer values than ranks.

    Example:
        >>> print(Machine(4, memory=2**30, speeds=[1, 1, 0.5, 1]))
        4 ranks of 1.0 GiB, speeds 1, 1, 0.5, 1, links that take no time
    """

    ranks: int
    memory: PerRank | None = None
    network: Network | None = None
    speeds: PerRank | None = None
    disk: Disk | None = None

    def __post_init__(self) -> None:
        ranks = plain_integer("ranks", self.ranks)
        if ranks < 1:
            raise ValueError(f"ranks must be 1 or more, not {ranks}")
        if self.network is None:
            object.__setattr__(self, "network", Network())
        if not isinstance(self.network, Network):
            raise TypeError(f"network must be a Network, not {shown(self.network)}")
        if not (self.disk is None or isinstance(self.disk, Disk)):
            raise TypeError(f"disk must be a Disk, not {shown(self.disk)}")
        plain = {"ranks": ranks, "memory": self.memory, "speeds": self.speeds}
        for name, check in (("memory", spread_memory), ("speeds", spread_speeds)):
            if plain[name] is not None:
                plain[name] = _plain(name, plain[name])
                check(plain[name], _n_listed(plain[name], ranks))
                if isinstance(plain[name], tuple):
                    plain[name] = plain[name][:ranks]
        links = self.network.bandwidth, self.network.latency
        for name, values in zip(("bandwidth", "latency"), links):
            n = _n_listed(values, ranks - 1)
            spread(name, values, n, "links between ranks")
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def rank_memory(self) -> np.ndarray:
        """Returns the bytes that each rank may use; infinitely many without a limit."""
        return spread_memory(self.memory, self.ranks)

    def rank_speeds(self) -> np.ndarray:
        """Returns the speed of each rank."""
        return spread_speeds(self.speeds, self.ranks)

    def links(self) -> Links:
        """Returns the links between neighbouring ranks."""
        return self.network.links(self.ranks)

    def to_json(self) -> dict[str, Any]:
        """Returns fields for JSON, with null for no limit and for infinite speed."""
        network, disk = self.network, self.disk
        return {
            "ranks": self.ranks,
            "memory": _without_infinity(self.memory),
            "network": {
                "bandwidth": _without_infinity(_plain("", network.bandwidth)),
                "latency": _plain("", network.latency),
                "overlap": bool(network.overlap),
            },
            "speeds": self.speeds,
            "disk": None if disk is None else {"read": disk.read, "write": disk.write},
        }

    @classmethod
    def from_json(cls, row: Any) -> Machine:
        """Makes a machine from the result of :meth:`to_json`.

        Raises:
            ValueError: If a field is something else; the message names the field.
        """
        if isinstance(row, dict):
            row = dict(row)
            if row.get("memory") is not None:
                row["memory"] = _with_infinity(row["memory"])
            if isinstance(row.get("network"), dict):
                network = dict(row["network"])
                network["bandwidth"] = _with_infinity(network.get("bandwidth"))
                row["network"] = from_fields(Network, network, "network")
            if row.get("disk") is not None:
                row["disk"] = from_fields(Disk, row["disk"], "disk")
        return from_fields(cls, row, "machine")

    def save(self, path: str | os.PathLike, about: Any = None) -> None:
        """Writes JSON; the file appears only when it is complete.

        Args:
            path: The file, such as ``'machine.json'``.
            about: Further facts about the hosts, for people: any value for JSON.
        """
        write_json(
            path, {"divisible": "machine", "machine": self.to_json(), "about": about}
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> Machine:
        """Reads a file that :meth:`save` or ``divisible smoke`` wrote.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file holds something else; the message names the field.

        Example:
            >>> import tempfile
            >>> with tempfile.NamedTemporaryFile() as file:
            ...     Machine(2, speeds=[1, 0.5]).save(file.name)
            ...     print(Machine.load(file.name))
            2 ranks, speeds 1, 0.5, links that take no time
        """
        with reading_json(path, "a machine") as content:
            take_kind(content, "machine")
            return cls.from_json(content.get("machine"))

    def __str__(self) -> str:
        words = [count(self.ranks, "rank")]
        if self.memory is not None:
            words[0] += f" of {_in_words(self.memory, _memory)}"
        if self.speeds is not None:
            words.append(f"speeds {_in_words(self.speeds, '{:g}'.format)}")
        words.append(_links_in_words(self.network))
        if self.disk is not None:
            read, write = _rate(self.disk.read), _rate(self.disk.write)
            words.append(f"disks that read {read} and write {write}")
        return ", ".join(words)


def check_machine(machine: object) -> None:
    """Refuses a value that is not a machine.

    Raises:
        TypeError: If ``machine`` is something else.
    """
    if not isinstance(machine, Machine):
        raise TypeError(
            f"machine must be a Machine, such as Machine(ranks=4), not {shown(machine)}"
        )


def _plain(name: str, values: PerRank) -> float | tuple[float, ...]:
    """Returns a number, or a tuple of numbers, as Python's own."""
    array = numbers(name, values)
    return tuple(array.tolist()) if array.ndim else float(array)


def _n_listed(values: PerRank, n: int) -> int:
    """Returns the number of values to check; a single one serves any ranks."""
    return n if np.ndim(values) else min(n, 1)


def _without_infinity(values: float | Sequence[float] | None) -> Any:
    if isinstance(values, (tuple, list)):
        return [None if value == np.inf else value for value in values]
    return None if values == np.inf else values


def _with_infinity(values: Any) -> Any:
    if isinstance(values, list):
        return [np.inf if value is None else value for value in values]
    return np.inf if values is None else values


def _in_words(values: PerRank, in_words: Callable[[float], str]) -> str:
    """Returns the values of ranks or links as text; for many of them the range."""
    array, between = np.atleast_1d(values), ", "
    if len(array) > _MOST_LISTED:
        array, between = np.array([array.min(), array.max()]), " to "
    found = [in_words(value) for value in array.tolist()]
    return found[0] if len(set(found)) == 1 else between.join(found)


def _links_in_words(network: Network) -> str:
    words = []
    if np.isfinite(network.bandwidth).any():
        words.append(f"of {_in_words(network.bandwidth, _rate)}")
    if np.any(network.latency):
        words.append(f"with {_in_words(network.latency, format_seconds)} of latency")
    words = words or ["that take no time"]
    if not network.overlap:
        words.append("while ranks do not compute")
    return f"links {' '.join(words)}"


def _memory(value: float) -> str:
    return "any size" if value == np.inf else format_bytes(value)


def _rate(value: float) -> str:
    """Returns a bandwidth as ``divisible plan --bandwidth`` reads it."""
    if value == np.inf:
        return "any rate"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}/s"
    return f"{value:.4g} B/s"
