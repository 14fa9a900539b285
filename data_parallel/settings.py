"""The arguments of an exchange, checked before anything is sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from divisible.communication.wire import BLOCK, WIRE, WireDtype, check_wire_dtype

STRATEGIES = ("two_roundings", "oyama2017")


class Settings(NamedTuple):
    """How gradients are exchanged.

    Attributes:
        exchange_dtype: The name of the dtype on the wire; ``'fp8'`` is that of the
            strategy.
        strategy: One of ``STRATEGIES``.
        block: How many elements have a scale, with ``'two_roundings'``.
        rounding: ``'nearest'`` or ``'truncate'``; ``None`` for the strategy's own.
        quantile: Of the magnitudes, which becomes the largest number of the range.
        samples: How many elements the quantile is taken of at most.
        epsilon: What is added to the magnitudes of weights.
        seed: Of the samples.
        q: The quantile, if it is given.
    """

    exchange_dtype: str = "int8"
    strategy: str = "two_roundings"
    block: int = BLOCK
    rounding: str | None = None
    quantile: float = 0.95
    samples: int = 1024
    epsilon: float = 1e-5
    seed: int = 0
    q: float | None = None

    @property
    def is_oyama2017(self) -> bool:
        """Whether it is Algorithm 1 of Oyama et al."""
        return self.strategy == "oyama2017"

    @property
    def wire(self) -> WireDtype:
        """The dtype on the wire."""
        if self.exchange_dtype == "fp8":
            return WIRE["e5m2" if self.is_oyama2017 else "e4m3"]
        return WIRE[self.exchange_dtype]

    @property
    def runs_on_gpu(self) -> bool:
        """Whether arrays on a GPU are coded there; otherwise copies on the host are."""
        return self.wire.has_kernels and not self.is_oyama2017

    @property
    def rounds(self) -> str:
        """How Algorithm 1 rounds: as the paper does, unless asked otherwise."""
        return self.rounding or "truncate"

    def checked(self) -> Settings:
        """Returns the same.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If an argument is out of its range, or they contradict.
        """
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be {_or(STRATEGIES)}, not {self.strategy}")
        check_wire_dtype("exchange_dtype", self.exchange_dtype, (*WIRE, "fp8"))
        if self.is_oyama2017 and self.wire.name != "e5m2":
            raise ValueError(
                f"strategy 'oyama2017' sends e5m2, not {self.exchange_dtype!r}: give"
                f" exchange_dtype='fp8', or strategy='two_roundings'"
            )
        if self.rounding not in (None, "nearest", "truncate"):
            raise ValueError(
                f"rounding must be 'nearest' or 'truncate', not {self.rounding!r}"
            )
        if self.rounding == "truncate" and not self.is_oyama2017:
            raise ValueError(
                "strategy 'two_roundings' rounds to nearest: rounding='truncate' is of"
                " strategy 'oyama2017'"
            )
        block = self.block
        if not is_integer(block) or block < 16 or block % 16:
            raise ValueError(f"block must be a positive multiple of 16, not {block}")
        if not 0 < self.quantile <= 1:
            raise ValueError(f"quantile must be in (0, 1], not {self.quantile}")
        check_integer("samples", self.samples, 1)
        check_integer("seed", self.seed, 0)
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, not {self.epsilon}")
        if self.q is not None and not self.q > 0:
            raise ValueError(f"q must be positive, not {self.q}")
        return self


def is_integer(value: Any) -> bool:
    """Returns whether a value can count something."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_integer(name: str, value: Any, least: int) -> None:
    """Sees that an argument is an integer, and large enough.

    Raises:
        TypeError, ValueError: If it is not.
    """
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, not {value}")


def _or(names: object) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}"
