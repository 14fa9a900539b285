"""Runs of layers one by one and fused, compared bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np

import chainer_kernels
from chainer_kernels.fusion import fusing
from chainer_kernels.fusion.measuring import FusionChoice, measured

#: Straight lines of a user, by name.
MARKED: dict[str, Callable] = {
    name: chainer_kernels.fusible(function)
    for name, function in {
        "arithmetic": lambda x: 2 * (x + 0.25) - x * x * x / (1.5 + x * x),
        "constants": lambda x: (1 - x) * (2 / (x * x + 1)) - (-x),
        "powers": lambda x: x**2 - 0.5 * F.sqrt(F.square(x) + 1),
        "shared": lambda x: F.sigmoid(x) * x + F.tanh(x) * x,
        "absolute": lambda x: F.identity(abs(x)) - 0.75 * x,
    }.items()
}

LAYERS: dict[str, Callable] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "clipped_relu": F.clipped_relu,
    "elu": F.elu,
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
    "dropout": F.dropout,
    **MARKED,
}


def one_by_one(layers: Sequence[Callable], *inputs: Any) -> Any:
    """Passes inputs through layers."""
    value: Any = inputs
    for layer in layers:
        value = layer(*value) if isinstance(value, tuple) else layer(value)
    return value


def gradients(
    run: Callable, arrays: Sequence[np.ndarray], seed: int = 0
) -> list[np.ndarray | None]:
    """Returns the output of a run on arrays, and their gradients."""
    np.random.seed(seed)
    variables = [chainer.Variable(x) for x in arrays]
    y = run(*variables)
    y.grad = np.cos(np.arange(y.size, dtype="f")).reshape(y.shape)
    y.backward()
    return [y.array, *(v.grad for v in variables)]


@contextlib.contextmanager
def always_faster() -> Iterator[None]:
    """Lets each chain be fused, whatever the measured times are.

    Inside a chain that a busy machine measures as slower, others would be looked for.
    """

    def measured_faster(*arguments: Any) -> FusionChoice:
        return measured(*arguments)._replace(is_fused=True)

    with mock.patch.object(fusing, "measured", measured_faster):
        yield


def assert_same_bits(
    one: Sequence[np.ndarray | None], other: Sequence[np.ndarray | None]
) -> None:
    """Asserts that arrays are equal, signs of zeros and what is no number included.

    But for the sign of what is no number, which no operation minds.
    """
    assert len(one) == len(other)
    for a, b in zip(one, other):
        if a is None or b is None:
            assert a is b
            continue
        np.testing.assert_array_equal(a, b)
        signs = [np.signbit(each) & ~np.isnan(each) for each in (a, b)]
        np.testing.assert_array_equal(*signs)
