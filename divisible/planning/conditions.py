"""The conditions that a plan was made for: machine, samples and profiles.

A plan keeps them, and so does its file. Whatever reads the file uses them again::

    divisible plan profile.json --ranks 4 --speeds 1,1,0.5,1 --batch 512
                      |
                  plan.json     cuts, schedule, ... and "conditions"
                      |
    divisible simulate plan.json            512 samples, rank 2 half as fast
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from divisible.number_lists import numbers
from divisible.planning.coding import CodingRate, check_coding, rates_from_json
from divisible.planning.disk import Disk
from divisible.planning.machine import (
    Network,
    PerRank,
    spread,
    spread_memory,
    spread_speeds,
)
from divisible.planning.plan_fields import listed
from divisible.planning.units import count, format_bytes, format_seconds
from divisible.records import from_fields, plain_integer, plain_text, shown

# Values of so many ranks or links are listed one by one in words.
_MOST_LISTED = 8


@dataclass(frozen=True)
class Machine:
    """The ranks that a plan is made for, and what lies between them.

    Printed, it is a line of text.

    Attributes:
        ranks: Number of ranks.
        memory: Bytes that a rank may use; one number for all or one for each. ``None``
            for no limit.
        network: The links between ranks; infinitely fast by default.
        speeds: Speeds of the ranks, relative to that of the profile; ``None`` for 1.
        disk: The disk of each rank; ``None`` if there is none to use.

    Raises:
        TypeError: If ``ranks`` is no integer, or a number is none.
        ValueError: If a value is out of range, or there are fewer than ranks.

    Example:
        >>> print(Machine(4, memory=2**30, speeds=[1, 1, 0.5, 1]))
        4 ranks of 1.0 GiB, speeds 1, 1, 0.5, 1, links that take no time
    """

    ranks: int
    memory: PerRank | None = None
    network: Network = Network()
    speeds: PerRank | None = None
    disk: Disk | None = None

    def __post_init__(self) -> None:
        ranks = plain_integer("ranks", self.ranks)
        if ranks < 1:
            raise ValueError(f"ranks must be 1 or more, not {ranks}")
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

    @property
    def least_memory(self) -> float:
        """Bytes that the rank with the least memory may use; infinite without limit."""
        return np.inf if self.memory is None else float(np.min(self.memory))

    def to_json(self) -> dict[str, Any]:
        """Returns fields that JSON knows: no limit, and infinitely fast, are null."""
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
        """Makes a machine of what :meth:`to_json` returned.

        Raises:
            ValueError: If it is something else; the message names the field.
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


@dataclass(frozen=True)
class Conditions:
    """The conditions that a plan was made for.

    Printed, they are a line of text.

    Attributes:
        machine: The ranks, and what lies between them.
        batch: Samples of a minibatch; ``None`` where a model was cut for microbatches
            of one size, however many there are.
        microbatch_size: Samples of such a microbatch; ``None`` where there is a
            ``batch``.
        profiles: The files of the profiles that the plan was made from.
        coding: How fast a rank codes gradients, by dtype on the wire, where replicas
            exchange them.

    Raises:
        TypeError: If a value is of another type.
        ValueError: If a number is not positive, or ``batch`` and ``microbatch_size``
            are both given or both missing.

    Example:
        >>> conditions = Conditions(Machine(2), microbatch_size=64)
        >>> conditions.minibatch(n_microbatches=8)
        512
    """

    machine: Machine
    batch: int | None = None
    microbatch_size: int | None = None
    profiles: Sequence[str] = ()
    coding: Mapping[str, CodingRate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.machine, Machine):
            raise TypeError(f"machine must be a Machine, not {shown(self.machine)}")
        if (self.batch is None) == (self.microbatch_size is None):
            raise ValueError(
                "conditions have either batch or microbatch_size: give one of them"
            )
        for name in ("batch", "microbatch_size"):
            value = getattr(self, name)
            if value is not None:
                number = plain_integer(name, value)
                if number < 1:
                    raise ValueError(f"{name} must be 1 or more, not {number}")
                object.__setattr__(self, name, number)
        profiles = tuple(listed("profiles", self.profiles))
        for i, name in enumerate(profiles):
            plain_text(f"name {i} of profiles", name)
        object.__setattr__(self, "profiles", profiles)
        check_coding(self.coding)

    def minibatch(self, n_microbatches: int | None) -> int | None:
        """Returns the samples of a minibatch.

        Args:
            n_microbatches: Number of microbatches in it.

        Returns:
            int: ``None`` where the conditions are those of a microbatch, and the number
            of microbatches is not known.
        """
        if self.batch is not None or n_microbatches is None:
            return self.batch
        return self.microbatch_size * n_microbatches

    def changed(self, ranks: int, batch: int | None = None, **given: Any) -> Conditions:
        """Returns these conditions with others in place of those that are given.

        Args:
            ranks: Number of ranks in use; the first ones of the machine.
            batch: Samples of a minibatch; as ever if ``None``.
            given: Attributes of :class:`Machine`; as ever if ``None``.
        """
        given = {name: value for name, value in given.items() if value is not None}
        found = replace(self, machine=replace(self.machine, ranks=ranks, **given))
        if batch is None:
            return found
        return replace(found, batch=batch, microbatch_size=None)

    def to_json(self, folder: str | os.PathLike) -> dict[str, Any]:
        """Returns fields that JSON knows.

        Args:
            folder: The folder of the file; names of profiles are relative to it.
        """
        return {
            "machine": self.machine.to_json(),
            "batch": self.batch,
            "microbatch_size": self.microbatch_size,
            "profiles": [os.path.relpath(name, folder) for name in self.profiles],
            "coding": {name: asdict(rate) for name, rate in self.coding.items()},
        }

    @classmethod
    def from_json(cls, row: Any, folder: str | os.PathLike) -> Conditions:
        """Makes conditions of what :meth:`to_json` returned.

        Args:
            row: The fields.
            folder: The folder of the file that they are from.

        Raises:
            ValueError: If they are something else; the message names the field.
        """
        if isinstance(row, dict):
            row = dict(row)
            if "machine" in row:
                row["machine"] = Machine.from_json(row["machine"])
            if "coding" in row:
                row["coding"] = rates_from_json(row["coding"])
            names = row.get("profiles")
            if isinstance(names, list) and all(isinstance(n, str) for n in names):
                row["profiles"] = [
                    os.path.normpath(os.path.join(folder, name)) for name in names
                ]
        return from_fields(cls, row, "conditions")

    def __str__(self) -> str:
        if self.batch is not None:
            samples = f"a minibatch of {count(self.batch, 'sample')}"
        else:
            samples = f"microbatches of {count(self.microbatch_size, 'sample')}"
        return f"{samples} on {self.machine}"


def _plain(name: str, values: PerRank) -> float | tuple[float, ...]:
    """Returns a number, or a tuple of numbers, as Python's own."""
    array = numbers(name, values)
    return tuple(array.tolist()) if array.ndim else float(array)


def _n_listed(values: PerRank, n: int) -> int:
    """Returns for how many ranks there are values to check: one serves any number."""
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
    """Returns the values of ranks or links in words, of many of them the range."""
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
