"""The formulas of update rules, from which the loops for CPU and GPU are made.

A formula is a function of one element, written once::

    def momentum_sgd(weight, gradient, v, /, lr, momentum):
                     |  what each element has | what all have
        v = momentum * v - lr * gradient
        weight += v
        return weight, v                  # the weight and the states, in this order

Before the slash are the weight, its unscaled gradient, and the states, by the names
that Chainer's rule gives them; after it are numbers. All are of the masters' dtype,
except states that are kept in float16. Operations are those of Chainer's rule on NumPy
arrays, in the same order, so that the weights are the same bit for bit. ``formulas``
says which Python a formula may use.

Formulas are plain functions, which also take NumPy's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import sqrt

#: Alignment of buffers, in elements.
ALIGNMENT = 64

ZERO, ONE = np.float32(0), np.float32(1)
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


def adabound(
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
    lower: Any,
    upper: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.AdaBound`.

    Its arguments are those of :func:`adam`, and the bounds of the learning rate.
    """
    m += rate1 * (gradient - m)
    v += rate2 * (gradient * gradient - v)
    step = min(max(alpha_t / (sqrt(v) + eps), lower), upper)
    weight = keep * weight - eta * (step * m)
    return weight, m, v


def amsbound(
    weight: Any,
    gradient: Any,
    m: Any,
    v: Any,
    vhat: Any,
    /,
    alpha_t: Any,
    rate1: Any,
    rate2: Any,
    eps: Any,
    keep: Any,
    eta: Any,
    lower: Any,
    upper: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.AMSBound`.

    Its arguments are those of :func:`adabound`, and ``vhat``, the largest ``v``. With
    infinite bounds it is :class:`chainer.optimizers.AMSGrad`.
    """
    m += rate1 * (gradient - m)
    v += rate2 * (gradient * gradient - v)
    # A NaN comes from `v`, and stays: `max` returns its first argument then.
    vhat = max(v, vhat)
    step = min(max(alpha_t / (sqrt(vhat) + eps), lower), upper)
    weight = keep * weight - eta * (step * m)
    return weight, m, v, vhat


def corrected_momentum_sgd(
    weight: Any, gradient: Any, v: Any, /, lr: Any, momentum: Any
) -> Any:
    """Updates as :class:`chainer.optimizers.CorrectedMomentumSGD`."""
    v = momentum * v - gradient
    weight += lr * v
    return weight, v


def nesterov_ag(
    weight: Any,
    gradient: Any,
    v: Any,
    /,
    lr: Any,
    momentum: Any,
    momentum_squared: Any,
    lr_ahead: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.NesterovAG`.

    Args:
        weight: The weight.
        gradient: Its gradient.
        v: The velocity.
        lr: Learning rate.
        momentum: Decay of the velocity.
        momentum_squared: Its square.
        lr_ahead: (1 + momentum) * lr.
    """
    v = momentum * v - lr * gradient
    weight += momentum_squared * v
    weight -= lr_ahead * gradient
    return weight, v


def ada_grad(weight: Any, gradient: Any, h: Any, /, lr: Any, eps: Any) -> Any:
    """Updates as :class:`chainer.optimizers.AdaGrad`."""
    h += gradient * gradient
    weight -= lr * gradient / (sqrt(h) + eps)
    return weight, h


def ada_delta(
    weight: Any, gradient: Any, msg: Any, msdx: Any, /, rho: Any, rate: Any, eps: Any
) -> Any:
    """Updates as :class:`chainer.optimizers.AdaDelta`; the rate is 1 - rho."""
    msg = rho * msg + rate * gradient * gradient
    dx = sqrt((msdx + eps) / (msg + eps)) * gradient
    msdx = rho * msdx + rate * dx * dx
    weight -= dx
    return weight, msg, msdx


def rmsprop(
    weight: Any,
    gradient: Any,
    ms: Any,
    /,
    lr: Any,
    alpha: Any,
    rate: Any,
    eps: Any,
    eps_inside: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.RMSprop`.

    Args:
        weight: The weight.
        gradient: Its gradient.
        ms: Mean of their squares.
        lr: Learning rate.
        alpha: Decay of the mean.
        rate: 1 - alpha.
        eps: Added to the root.
        eps_inside: Added to what the root is taken of. One of the two is zero.
    """
    ms = alpha * ms + rate * gradient * gradient
    weight -= lr * gradient / (sqrt(ms + eps_inside) + eps)
    return weight, ms


def rmsprop_graves(
    weight: Any,
    gradient: Any,
    n: Any,
    g: Any,
    delta: Any,
    /,
    lr: Any,
    alpha: Any,
    rate: Any,
    momentum: Any,
    eps: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.RMSpropGraves`; the rate is 1 - alpha."""
    n = alpha * n + rate * gradient * gradient
    g = alpha * g + rate * gradient
    delta = momentum * delta - lr * gradient / sqrt(n - g * g + eps)
    weight += delta
    return weight, n, g, delta


def smorms3(
    weight: Any, gradient: Any, mem: Any, g: Any, g2: Any, /, lr: Any, eps: Any
) -> Any:
    """Updates as :class:`chainer.optimizers.SMORMS3`."""
    r = ONE / (mem + ONE)
    g = (ONE - r) * g + r * gradient
    g2 = (ONE - r) * g2 + r * gradient * gradient
    x = g * g / (g2 + eps)
    weight -= gradient * min(x, lr) / (sqrt(g2) + eps)
    mem = ONE + mem * (ONE - x)
    return weight, mem, g, g2


def msvag(
    weight: Any,
    gradient: Any,
    m: Any,
    v: Any,
    /,
    lr: Any,
    rate: Any,
    fix: Any,
    rho: Any,
    rho_rest: Any,
    eta: Any,
    decay: Any,
) -> Any:
    """Updates as :class:`chainer.optimizers.MSVAG`.

    Args:
        weight: The weight.
        gradient: Its gradient.
        m: Mean of the gradients.
        v: Mean of their squares.
        lr: Learning rate.
        rate: 1 - beta.
        fix: 1 - beta^t, which corrects the bias of the means.
        rho: The paper's rho.
        rho_rest: 1 - rho.
        eta: Schedule multiplier.
        decay: Weight decay.
    """
    m += rate * (gradient - m)
    v += rate * (gradient * gradient - v)
    mt = m / fix
    vt = v / fix
    mt2 = mt * mt
    s = (vt - mt2) / rho_rest
    # A NaN counts as zero: `max` returns its first argument then.
    factor = min(max(ZERO, mt2 / (mt2 + rho * s)), ONE)
    weight -= eta * (lr * mt * factor + decay * weight)
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
    """Updates as :func:`momentum_sgd16`, with G in the dtype of the weights."""
    g = momentum * g + gradient
    weight -= lr * g
    return weight, g
