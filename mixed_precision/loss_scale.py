"""The factor that keeps gradients within the range of float16.

Gradients of activations are small: in the SSD detector of Naruse's slides (2017) 94 %
of them become zero in float16. Multiplying the loss multiplies them all. The weights'
gradients are divided again before the update. With a power of two neither operation
rounds. Any other scale, such as 1000, rounds the gradients in both.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

# Both a scale and its reciprocal must be float32 numbers.
_LARGEST = 2.0**126


class LossScale:
    """A loss scale; ``float(loss_scale)`` is its current value.

    A pipeline takes the object itself, ``Pipeline(...,
    loss_scale=optimizer.loss_scale)``, and reads the value in every step.
    """

    def __init__(self, scale: float) -> None:
        self._scale = _factor("scale", scale)
        self._n_skipped = 0
        self._n_finite = 0

    def __float__(self) -> float:
        return self._scale

    @property
    def n_skipped(self) -> int:
        """Number of steps in a row that have overflowed."""
        return self._n_skipped

    def stepped(self) -> None:
        """Counts a step whose gradients were finite."""
        self._n_skipped = 0
        self._n_finite += 1

    def overflowed(self, parameters: Sequence[str]) -> None:
        """Counts a step that is skipped, because gradients were not finite.

        Args:
            parameters: Paths of the parameters whose gradients overflowed.

        Raises:
            FloatingPointError: If a smaller scale would not help.
        """
        self._n_skipped += 1
        self._n_finite = 0

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the state; the classes read each other's state."""
        scale = float(serializer("scale", self._scale))
        n_skipped = int(serializer("n_skipped", self._n_skipped))
        n_finite = int(serializer("n_finite", self._n_finite))
        self._scale = self._resumed(scale)
        # Steps at another scale do not count.
        same = self._scale == scale
        self._n_skipped = n_skipped if same else 0
        self._n_finite = n_finite if same else 0

    def _resumed(self, saved: float) -> float:
        """Returns the scale to continue with: the user's own, unless it is dynamic."""
        return self._scale


class StaticLossScale(LossScale):
    """The same scale in every step.

    A step that overflows is skipped. Training that is resumed continues with the scale
    given here, not with the saved one.

    Prefer a power of two, which changes exponents only. Any other scale rounds. The
    backward rounds the gradients of the loss times the scale to other float16 numbers
    than those of the loss. The update multiplies them by the reciprocal of the scale,
    both rounded to float32, so an unscaled gradient has a relative error of 2**-23 at
    most. Rounding to float16 has one of up to 2**-11.

    Args:
        scale (float): The scale, from 2**-126 to 2**126.

    Raises:
        ValueError: If the scale is not positive, or out of range.
        TypeError: If the scale is not a number.

    Example:
        >>> float(StaticLossScale(1024)), float(StaticLossScale(1000))
        (1024.0, 1000.0)

    See Naruse (2017), Volta Tensor Core training, "Loss scaling"; the slides train
    with 128, 512, 1024 and 32768, and AlexNet and Inception v3 with 1000 and 100.
    """

    #: A static scale that was chosen too large overflows in every step.
    patience = 100

    def overflowed(self, parameters: Sequence[str]) -> None:
        """Counts a step that is skipped.

        Raises:
            FloatingPointError: If the step is the hundredth skipped one in a row.
        """
        super().overflowed(parameters)
        if self._n_skipped >= self.patience:
            raise FloatingPointError(
                f"gradients were not finite in {self._n_skipped} steps in a row, with"
                f" the static loss scale {self._scale:g}: {_listed(parameters)}. If"
                f" the loss is finite, choose a smaller scale or DynamicLossScale;"
                f" if not, check the learning rate and the data"
            )

    def __repr__(self) -> str:
        return f"StaticLossScale({self._scale:g})"


class DynamicLossScale(LossScale):
    """A scale that grows as far as gradients stay finite.

    A step that overflows is skipped, and the scale is divided by ``factor``. After
    ``growth_interval`` steps in a row without overflow the scale is multiplied by
    ``factor``. Training that is resumed continues with the saved scale, limited to
    ``minimum`` and ``maximum``. The scale of a :class:`StaticLossScale` is rounded down
    to a power of two.

    Args:
        initial (float): The scale to begin with, a power of two.
        growth_interval (int): Steps without overflow before the scale grows.
        factor (float): Factor of each change, a power of two.
        minimum (float): The smallest scale, a power of two. An overflow at this scale
            is an error: the scale does not cause the infinite gradients.
        maximum (float): The largest scale, a power of two.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If an argument is not a number.

    Example:
        >>> loss_scale = DynamicLossScale(1024, growth_interval=2)
        >>> loss_scale.overflowed(['/0/W'])
        >>> float(loss_scale)
        512.0
        >>> loss_scale.stepped()
        >>> loss_scale.stepped()
        >>> float(loss_scale)
        1024.0
    """

    def __init__(
        self,
        initial: float = 2.0**15,
        *,
        growth_interval: int = 2000,
        factor: float = 2.0,
        minimum: float = 1.0,
        maximum: float = 2.0**24,
    ) -> None:
        super().__init__(_power_of_two("initial", initial))
        self._factor = _power_of_two("factor", factor)
        self._minimum = _power_of_two("minimum", minimum)
        self._maximum = _power_of_two("maximum", maximum)
        self._interval = operator.index(growth_interval)
        if self._factor < 2:
            raise ValueError(f"factor must be 2 at least, not {factor}")
        if self._interval < 1:
            raise ValueError(
                f"growth_interval must be 1 at least, not {growth_interval}"
            )
        if not self._minimum <= self._scale <= self._maximum:
            raise ValueError(
                f"the initial scale {initial} is not between the minimum {minimum} and"
                f" the maximum {maximum}"
            )

    def stepped(self) -> None:
        """Counts a step; the scale may grow."""
        super().stepped()
        if self._n_finite >= self._interval:
            self._n_finite = 0
            self._scale = min(self._scale * self._factor, self._maximum)

    def overflowed(self, parameters: Sequence[str]) -> None:
        """Counts a step that is skipped; the scale shrinks.

        Raises:
            FloatingPointError: If the scale is the minimum already.
        """
        super().overflowed(parameters)
        if self._scale <= self._minimum:
            raise FloatingPointError(
                f"gradients are not finite at the smallest loss scale,"
                f" {self._minimum:g}: {_listed(parameters)}. The scale does not"
                f" cause that: check the loss, the learning rate and the data"
            )
        self._scale = max(self._scale / self._factor, self._minimum)

    def _resumed(self, saved: float) -> float:
        exponent = math.frexp(saved)[1] - 1
        return min(max(2.0**exponent, self._minimum), self._maximum)

    def __repr__(self) -> str:
        return (
            f"DynamicLossScale({self._scale:g}, growth_interval={self._interval},"
            f" factor={self._factor:g}, minimum={self._minimum:g},"
            f" maximum={self._maximum:g})"
        )


def as_loss_scale(value: Any) -> LossScale:
    """Returns the :class:`LossScale` for a loss scale, a number or ``None``."""
    if value is None:
        return DynamicLossScale()
    return value if isinstance(value, LossScale) else StaticLossScale(value)


def _factor(name: str, value: Any) -> float:
    """Returns a factor of gradients, or refuses it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {value!r}")
    value = float(value)
    if not value > 0 or math.isinf(value):
        raise ValueError(
            f"{name} must be positive and finite, such as 1024, not {value}"
        )
    if not 1 / _LARGEST <= value <= _LARGEST:
        raise ValueError(
            f"{name} must be from 2**-126 to 2**126, not {value}: gradients of float32"
            f" are divided by it"
        )
    return value


def _power_of_two(name: str, value: Any) -> float:
    """Returns a factor that is a power of two, or refuses it."""
    value = _factor(name, value)
    if math.frexp(value)[0] != 0.5:
        raise ValueError(
            f"{name} must be a power of two, such as 1024, not {value}: a dynamic scale"
            f" changes without rounding. StaticLossScale accepts any positive number"
        )
    return value


def _listed(parameters: Sequence[str], most: int = 5) -> str:
    more = len(parameters) - most
    text = ", ".join(parameters[:most])
    return f"{text} and {more} more" if more > 0 else text
