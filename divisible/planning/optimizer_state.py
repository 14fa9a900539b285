"""The memory that an optimizer needs, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterable

import chainer
import numpy as np

from divisible.rule_state import rule_state_bytes


def check_optimizer(optimizer: object) -> None:
    """Refuses a value that is neither an optimizer nor ``None``.

    Raises:
        TypeError: If ``optimizer`` is something else.
    """
    is_mixed = hasattr(optimizer, "update_bytes") and not isinstance(optimizer, type)
    if not (isinstance(optimizer, (chainer.GradientMethod, type(None))) or is_mixed):
        raise TypeError(
            f"optimizer must be a GradientMethod, such as optimizers.Adam(), or"
            f" MixedPrecision of one, not {optimizer!r}"
        )


def state_bytes(
    optimizer: chainer.GradientMethod | None, parameters: Iterable[chainer.Parameter]
) -> int:
    """Returns the bytes that an update needs besides parameters and their gradients.

    The state of an optimizer is made for one parameter at a time.
    """
    return sum(_state_bytes(optimizer, parameter) for parameter in parameters)


def _state_bytes(
    optimizer: chainer.GradientMethod | None, parameter: chainer.Parameter
) -> int:
    # Gradients of microbatches are added up in float32.
    sums = 4 * parameter.size if parameter.dtype == np.float16 else 0
    if optimizer is None:
        return sums
    if hasattr(optimizer, "update_bytes"):
        # MixedPrecision, which needs more than its rules' state.
        return sums + optimizer.update_bytes(parameter)
    return sums + rule_state_bytes(optimizer.create_update_rule(), parameter)
