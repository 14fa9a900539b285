"""Pointwise functions that follow a streamed layer, applied to each segment.

Their gradients follow from their outputs, so a layer holds its output only.
"""

from __future__ import annotations

from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels import switch
from chainer_kernels.layouts import are_float32

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


#: For each function of Chainer's a function that returns the gradient of the input. Its
#: arguments are the output and the output's gradient. Other arguments have defaults.
GRADIENTS: dict[Any, Gradient] = {
    F.elu: _elu,
    F.leaky_relu: _leaky_relu,
    F.relu: _relu,
    F.sigmoid: _sigmoid,
    F.tanh: _tanh,
}


def check(activation: Any) -> None:
    """Refuses an activation that is not in `GRADIENTS`.

    Raises:
        ValueError: If it is not.
    """
    if activation is not None and activation not in GRADIENTS:
        names = ", ".join(f"F.{each.__name__}" for each in GRADIENTS)
        raise ValueError(
            f"activation={activation!r} is not one of {names}: leave it out, and append"
            f" it to the model as the next layer"
        )


def forward(
    activation: Any, z: np.ndarray, b: np.ndarray | None, y: np.ndarray, start: int
) -> None:
    """Applies an activation, if there is one, to some output channels.

    Args:
        activation: The activation; may be ``None``.
        z: Inputs of some channels; may be overwritten.
        b: Bias of these channels, which is added first; ``None`` for no bias.
        y: The array of all outputs, of which some are written.
        start: The first channel that is written.
    """
    if activation is F.relu and _have_loops(z, y):
        from chainer_kernels.loops import columns

        first = start * (z[0, 0].size if z.size else 1)
        matrix = _matrix(z)
        if b is None:
            b = np.zeros(matrix.shape[1], z.dtype)
        columns.add_relu(matrix, b, _matrix(y), first)
        return
    if b is not None:
        z += b
    part = y[:, start : start + z.shape[1]]
    if activation is None:
        part[...] = z
    elif activation is F.relu:
        np.maximum(z, 0, out=part)
    else:
        with chainer.no_backprop_mode():
            part[...] = activation(z).array


def backward(
    activation: Any, y: np.ndarray | None, gy: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """Returns the gradient of some channels of an activation's input.

    Args:
        activation: The activation; may be ``None``.
        y: All outputs; ``None`` without an activation.
        gy: The gradient of all outputs.
        start: The first channel.
        stop: The channel behind the last.

    Returns:
        numpy.ndarray: The gradient, C contiguous.
    """
    part = gy[:, start:stop]
    if activation is None:
        return np.ascontiguousarray(part)
    if activation is F.relu and _have_loops(y, gy):
        from chainer_kernels.loops import columns

        gz = np.empty(part.shape, gy.dtype)
        first = start * (gy[0, 0].size if gy.size else 1)
        columns.relu_grad(_matrix(y), _matrix(gy), _matrix(gz), first)
        return gz
    return np.ascontiguousarray(GRADIENTS[activation](y[:, start:stop], part))


def _have_loops(*arrays: np.ndarray) -> bool:
    are_contiguous = all(each.flags.c_contiguous for each in arrays)
    return are_contiguous and are_float32(*arrays) and switch.is_ours()


def _matrix(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)
