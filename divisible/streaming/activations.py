"""Pointwise functions that follow a streamed layer, applied to each segment.

Their gradients are told from their outputs, so that a layer holds its output only.
"""

from __future__ import annotations

from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

Gradient = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _relu(y: np.ndarray, gy: np.ndarray) -> np.ndarray:
    return gy * (y > 0)


def _leaky_relu(y: np.ndarray, gy: np.ndarray) -> np.ndarray:
    return np.where(y > 0, gy, gy * y.dtype.type(0.2))


def _elu(y: np.ndarray, gy: np.ndarray) -> np.ndarray:
    return np.where(y > 0, gy, gy * (y + y.dtype.type(1)))


def _sigmoid(y: np.ndarray, gy: np.ndarray) -> np.ndarray:
    return gy * y * (1 - y)


def _tanh(y: np.ndarray, gy: np.ndarray) -> np.ndarray:
    return gy * (1 - y * y)


#: By function of Chainer's the gradient of its input, from its output and the gradient
#: of that. Their other arguments are Chainer's defaults.
GRADIENTS: dict[Any, Gradient] = {
    F.elu: _elu,
    F.leaky_relu: _leaky_relu,
    F.relu: _relu,
    F.sigmoid: _sigmoid,
    F.tanh: _tanh,
}


def check(activation: Any) -> None:
    """Refuses an activation that is not known here.

    Raises:
        ValueError: If it is not.
    """
    if activation is not None and activation not in GRADIENTS:
        names = ", ".join(f"F.{each.__name__}" for each in GRADIENTS)
        raise ValueError(
            f"activation={activation!r} is not one of {names}: leave it out, and append"
            f" it to the model as the next layer"
        )


def forward(activation: Any, z: np.ndarray, out: np.ndarray) -> None:
    """Applies an activation, if there is one, on the way from one array to another."""
    if activation is None:
        out[...] = z
    elif activation is F.relu:
        # Without an array in between, which is most of the time that it takes.
        np.maximum(z, 0, out=out)
    else:
        with chainer.no_backprop_mode():
            out[...] = activation(z).array


def backward(activation: Any, y: np.ndarray | None, gy: np.ndarray) -> np.ndarray:
    """Returns the gradient of an activation's input.

    Args:
        activation: If there is one.
        y: Its output.
        gy: The gradient of that.
    """
    if activation is None:
        return gy
    return GRADIENTS[activation](y, gy)
