"""The speed of coding gradients for the wire, on one core."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from divisible.communication.wire import BLOCK, WIRE
from divisible.records import from_fields, plain_number, shown

#: Elements of a measurement: more than caches hold, as in the parts of a gradient.
_ELEMENTS = 2**20
_ROUNDS = 7


@dataclass(frozen=True)
class CodingRate:
    """The speed of coding on one core.

    Attributes:
        encode: Elements per second that are written.
        decode: Elements per second that are read, and added up.

    Raises:
        TypeError: If a rate is not a number.
        ValueError: If a rate is not positive and finite.
    """

    encode: float
    decode: float

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            number = plain_number(f"{field.name} of a rate", rate, "Measure again")
            if number == 0:
                raise ValueError(f"{field.name} of a rate is 0: it must be positive")
            object.__setattr__(self, field.name, number)

    def seconds(self, n: float, replicas: int) -> float:
        """Returns the seconds that a replica codes in an exchange of ``n`` elements.

        The replica encodes all of its own elements, decodes all replicas' elements of
        the part that it adds up, encodes the sum, and decodes the mean.

        Example:
            >>> CodingRate(encode=2e9, decode=4e9).seconds(n=4e9, replicas=2)
            5.0
        """
        return n * ((1 + 1 / replicas) / self.encode + 2 / self.decode)


def check_coding(coding: Mapping[str, CodingRate]) -> None:
    """Refuses a value that is not a mapping from dtypes on the wire to rates.

    Raises:
        TypeError: If the value is not a mapping, or has other values than rates.
        ValueError: If a dtype does not exist.
    """
    if not isinstance(coding, Mapping):
        raise TypeError(f"coding must have a rate for each dtype, not {shown(coding)}")
    for name, rate in coding.items():
        if name not in WIRE:
            raise ValueError(
                f"coding is of {shown(name)}, which is not one of {', '.join(WIRE)}"
            )
        if not isinstance(rate, CodingRate):
            raise TypeError(f"coding in {name} must be a CodingRate, not {shown(rate)}")


def rates_from_json(rows: Any) -> Any:
    """Returns rates by dtype from their fields; other values unchanged.

    Raises:
        ValueError: If the fields are not those of a rate; the message names the dtype.
    """
    if not isinstance(rows, dict):
        return rows
    return {
        name: from_fields(CodingRate, row, f"coding in {shown(name)}")
        for name, row in rows.items()
    }


def measure_coding(names: Iterable[str] = WIRE) -> dict[str, CodingRate]:
    """Measures how fast this machine codes, some hundredths of a second for each.

    Each dtype is measured once in a process.

    Args:
        names: Names of dtypes on the wire; all by default.

    Returns:
        dict: Rates by name; the shortest of several times counts.

    Example:
        >>> rates = measure_coding(['fp32'])
        >>> rates['fp32'].encode > 0
        True
    """
    return {name: _measured(name) for name in names}


@functools.cache
def _measured(name: str) -> CodingRate:
    wire = WIRE[name]
    values = np.linspace(-1, 1, _ELEMENTS, dtype=np.float32)
    total = np.zeros_like(values)
    message = np.empty(wire.n_bytes(_ELEMENTS, BLOCK), np.uint8)
    encode, decode = [], []
    # The first round loads, compiles and allocates, and does not count.
    for _ in range(1 + _ROUNDS):
        start = time.perf_counter()
        wire.encode(values, BLOCK, message)
        between = time.perf_counter()
        wire.decode(message, _ELEMENTS, BLOCK, total, add=True)
        encode.append(between - start)
        decode.append(time.perf_counter() - between)
    return CodingRate(_ELEMENTS / min(encode[1:]), _ELEMENTS / min(decode[1:]))
