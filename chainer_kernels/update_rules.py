"""The formulas of update rules, from which the loops for CPU and GPU are made.

A formula is a function of one element, written once::

    def momentum_sgd(weight, gradient, v, /, lr, momentum):
                     |  what each element has | what all have
        v = momentum * v - lr * gradient
        weight += v
        return weight, v                  # the weight and the states, in this order

Before the slash are the weight, its unscaled gradient, and the states, by the names
that Chainer's rule gives them; after it are numbers. All are of the masters' dtype,
but for states that are kept in float16. Operations are those of Chainer's rule on NumPy
arrays, in the same order, so that the weights are the same bit for bit. ``formulas``
says which Python a formula may use.

Formulas are plain functions, which also take NumPy's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import sqrt

#: Of buffers, in elements.
ALIGNMENT = 64

LARGEST_HALF = np.float32(np.finfo(np.float16).max)


def from_half(half: Any) -> Any:
    """Returns a float16 as float32."""
    return np.float32(half)


def to_half(value: Any) -> Any:
    """Returns a float32 rounded to float16."""
    return np.float16(value)


def sgd(weight: Any, gradient: Any, /, lr: Any) -> Any:
    """Updates as :class:`chainer.optimizers.SGD`."""
    weight -= lr * gradient
    return weight


def momentum_sgd(weight: Any, gradient: Any, v: Any, /, lr: Any, momentum: Any) -> Any:
    """Updates as :class:`chainer.optimizers.MomentumSGD`."""
    v = momentum * v - lr * gradient
    weight += v
    return weight, v


def adam(
    weight: Any,
    gradient: Any,
    m: Any,
    v: Any,
    /,
    alpha_t: Any,
    rate1: Any,
    rate2: Any,
    eps: Any,
    keep: Any,
    eta: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.Adam`.

    Args:
        weight: The weight.
        gradient: Its gradient.
        m: Mean of the gradients.
        v: Mean of their squares.
        alpha_t: Learning rate with the bias correction.
        rate1: 1 - beta1.
        rate2: 1 - beta2.
        eps: Added to the root.
        keep: 1 - eta * weight decay.
        eta: Schedule multiplier.
    """
    m += rate1 * (gradient - m)
    v += rate2 * (gradient * gradient - v)
    weight = keep * weight - eta * (alpha_t / (sqrt(v) + eps) * m)
    return weight, m, v


def momentum_sgd16(
    weight: Any, gradient: Any, g: Any, /, lr: Any, momentum: Any
) -> Any:
    """Updates as :class:`~mixed_precision.MomentumSGD16` with G in float16.

    Args:
        weight: The weight.
        gradient: Its gradient, times G's scale.
        g: G times its scale.
        lr: Learning rate divided by G's scale.
        momentum: Momentum times what G's scale has changed by.
    """
    total = momentum * from_half(g) + gradient
    # G is made of finite gradients and stays finite.
    g = to_half(min(max(total, -LARGEST_HALF), LARGEST_HALF))
    weight -= lr * from_half(g)
    return weight, g


def accumulated_sgd(
    weight: Any, gradient: Any, g: Any, /, lr: Any, momentum: Any
) -> Any:
    """As :func:`momentum_sgd16`, with G in the dtype of the weights."""
    g = momentum * g + gradient
    weight -= lr * g
    return weight, g
