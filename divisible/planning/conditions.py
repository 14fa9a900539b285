"""The conditions that a plan was made for: machine, samples and profiles.

A plan keeps them, and so does its file. Code that reads the file uses them again::

    divisible plan profile.json --ranks 4 --speeds 1,1,0.5,1 --batch 512
                      |
                  plan.json     cuts, schedule, ... and "conditions"
                      |
    divisible simulate plan.json            512 samples, rank 2 half as fast
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from divisible.planning.coding import CodingRate, check_coding, rates_from_json
from divisible.planning.machine import Machine, check_machine
from divisible.planning.units import count
from divisible.records import from_fields, listed, plain_integer, plain_text, shown


@dataclass(frozen=True)
class Conditions:
    """The conditions that a plan was made for.

    Printed, they are a line of text.

    Attributes:
        machine: The ranks, and the links between them.
        batch: Samples of a minibatch; ``None`` where a model was cut for microbatches
            of one size, however many there are.
        microbatch_size: Samples of such a microbatch; ``None`` where there is a
            ``batch``.
        profiles: The files of the profiles that the plan was made from.
        coding: How fast a rank codes gradients, by dtype on the wire, where replicas
            exchange them.
        overlap_minibatches: Whether a rank begins the next minibatch while others are
            still in this one; ``None`` where the plan does not allow that, or it is not
            known.

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
    overlap_minibatches: bool | None = None

    def __post_init__(self) -> None:
        check_machine(self.machine)
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
        if self.overlap_minibatches not in (None, True, False):
            raise TypeError(
                f"overlap_minibatches must be true, false or null, not"
                f" {shown(self.overlap_minibatches)}"
            )

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

    def changed(
        self, batch: int | None = None, machine: Machine | None = None
    ) -> Conditions:
        """Returns these conditions with others in place of those that are given.

        Args:
            batch: Samples of a minibatch; unchanged if ``None``.
            machine: The machine; unchanged if ``None``.
        """
        found = self if machine is None else replace(self, machine=machine)
        if batch is None:
            return found
        return replace(found, batch=batch, microbatch_size=None)

    def to_json(self, folder: str | os.PathLike) -> dict[str, Any]:
        """Returns the fields in the form for JSON.

        Args:
            folder: The folder of the file; names of profiles are relative to it.
        """
        return {
            "machine": self.machine.to_json(),
            "batch": self.batch,
            "microbatch_size": self.microbatch_size,
            "profiles": [os.path.relpath(name, folder) for name in self.profiles],
            "coding": {name: asdict(rate) for name, rate in self.coding.items()},
            "overlap_minibatches": self.overlap_minibatches,
        }

    @classmethod
    def from_json(cls, row: Any, folder: str | os.PathLike) -> Conditions:
        """Makes conditions from the result of :meth:`to_json`.

        Args:
            row: The fields.
            folder: The folder of the file that the fields are from.

        Raises:
            ValueError: If a field is something else; the message names the field.
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
            what = (
                "overlapping minibatches" if self.overlap_minibatches else "a minibatch"
            )
            samples = f"{what} of {count(self.batch, 'sample')}"
        else:
            samples = f"microbatches of {count(self.microbatch_size, 'sample')}"
        return f"{samples} on {self.machine}"
