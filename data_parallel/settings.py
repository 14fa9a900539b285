"""The arguments of an exchange, checked before anything is sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from divisible.communication.wire import BLOCK, WIRE, WireDtype, check_wire_dtype

#: The strategies, with the dtype that each sends by default.
STRATEGIES = {"two_roundings": "int8", "oyama2017": "fp8"}


class Settings(NamedTuple):
    """The settings of the code in which gradients are exchanged.

    Attributes:
        exchange_dtype: Name of the dtype in which arrays are sent; ``None`` for the
            strategy's default. The strategy decides which one ``'fp8'`` is.
        strategy: One of ``STRATEGIES``.
        block: Number of elements that share a scale, with ``'two_roundings'``.
        rounding: ``'nearest'`` or ``'truncate'``; ``None`` for the strategy's own.
        quantile: Quantile of the magnitudes that becomes the largest number of the
            range.
        samples: Largest number of elements from which the quantile is computed.
        epsilon: Number that is added to the magnitudes of weights.
        ratio: Whether ``'oyama2017'`` sends gradients relative to the weights.
        seed: Seed of the choices of these elements.
        q: The quantile itself, if it is given.
    """

    exchange_dtype: str | None = None
    strategy: str = "two_roundings"
    block: int = BLOCK
    rounding: str | None = None
    quantile: float = 0.95
    samples: int = 1024
    epsilon: float = 1e-5
    ratio: bool = True
    seed: int = 0
    q: float | None = None

    @property
    def is_oyama2017(self) -> bool:
        """Whether the strategy is Algorithm 1 of Oyama et al."""
        return self.strategy == "oyama2017"

    @property
    def dtype_name(self) -> str:
        """The name of the dtype in which arrays are sent, given or by default."""
        if self.exchange_dtype is None:
            return STRATEGIES[self.strategy]
        return self.exchange_dtype

    @property
    def wire(self) -> WireDtype:
        """The dtype in which arrays are sent."""
        if self.dtype_name == "fp8":
            return WIRE["e5m2" if self.is_oyama2017 else "e4m3"]
        return WIRE[self.dtype_name]

    @property
    def runs_on_gpu(self) -> bool:
        """Whether arrays on a GPU are coded there, not in copies on the host."""
        return self.wire.has_kernels and not self.is_oyama2017

    @property
    def rounds(self) -> str:
        """The rounding of Algorithm 1; by default that of the paper."""
        return self.rounding or "truncate"

    def checked(self) -> Settings:
        """Returns the settings after checking them.

        Raises:
            TypeError: If an argument has a wrong type.
            ValueError: If an argument is out of range, or two contradict each other.
        """
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be {_or(STRATEGIES)}, not {self.strategy}")
        check_wire_dtype("exchange_dtype", self.dtype_name, (*WIRE, "fp8"))
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
        if not isinstance(self.ratio, bool):
            raise TypeError(f"ratio must be True or False, not {self.ratio!r}")
        if self.q is not None and not self.q > 0:
            raise ValueError(f"q must be positive, not {self.q}")
        return self


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer, and not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_integer(name: str, value: Any, least: int) -> None:
    """Checks that an argument is an integer, and large enough.

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
