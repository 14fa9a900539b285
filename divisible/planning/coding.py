"""How fast gradients are written in the dtype of the wire, and read, on one core."""

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
    """How fast one core codes.

    Attributes:
        encode: Elements per second that are written.
        decode: Elements per second that are read, and added up.

    Raises:
        TypeError: If a rate is no number.
        ValueError: If one is not positive and finite.
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
        """Returns what one replica computes in an exchange of ``n`` elements.

        It writes all of its own, reads what all replicas have of the part that it adds
        up, writes that sum, and reads the mean.

        Example:
            >>> CodingRate(encode=2e9, decode=4e9).seconds(n=4e9, replicas=2)
            5.0
        """
        return n * ((1 + 1 / replicas) / self.encode + 2 / self.decode)


def check_coding(coding: Mapping[str, CodingRate]) -> None:
    """Refuses what is no rate for each of some dtypes on the wire.

    Raises:
        TypeError: If it is no mapping, or has something else than rates.
        ValueError: If a dtype does not exist.
    """
    if not isinstance(coding, Mapping):
        raise TypeError(f"coding must have a rate for each dtype, not {shown(coding)}")
    for name, rate in coding.items():
        if name not in WIRE:
            raise ValueError(
                f"coding is of {shown(name)}, which is none of {', '.join(WIRE)}"
            )
        if not isinstance(rate, CodingRate):
            raise TypeError(f"coding in {name} must be a CodingRate, not {shown(rate)}")


def rates_from_json(rows: Any) -> Any:
    """Returns rates by dtype, of a dictionary with their fields; else what it was.

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
    """Measures how fast this machine codes, in some hundredths of a second for each.

    It is measured once in a process.

    Args:
        names: Of dtypes on the wire; all by default.

    Returns:
        dict: By name; the shortest of several times counts.

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
    # The first round is for what loads, compiles and allocates.
    for _ in range(1 + _ROUNDS):
        start = time.perf_counter()
        wire.encode(values, BLOCK, message)
        between = time.perf_counter()
        wire.decode(message, _ELEMENTS, BLOCK, total, add=True)
        encode.append(between - start)
        decode.append(time.perf_counter() - between)
    return CodingRate(_ELEMENTS / min(encode[1:]), _ELEMENTS / min(decode[1:]))
