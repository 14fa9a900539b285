"""Rounding to few bits, with gradients that pass through it."""

from __future__ import annotations

from typing import Any

import chainer
from chainer import FunctionNode
from chainer.utils import type_check

from model_compression.affine import Affine


class FakeQuantize(FunctionNode):
    """Rounds to numbers that an :class:`Affine` can represent, with the slope 1.

    Beyond the range the slope is 0, as that of a clip.
    """

    def __init__(self, affine: Affine) -> None:
        self._affine = affine
        self._is_within: Any = None

    def check_type_forward(self, in_types: Any) -> None:
        """Refuses arrays that are not floating-point."""
        type_check._argname(in_types, ("x",))
        type_check.expect(in_types[0].dtype.kind == "f")

    def forward(self, inputs: tuple) -> tuple:
        """Returns the rounded array, in its dtype."""
        (x,) = inputs
        affine = self._affine
        whole = affine.unbounded(x)
        self._is_within = (affine.lowest <= whole) & (whole <= affine.highest)
        rounded = affine.real(whole.clip(affine.lowest, affine.highest))
        return (rounded.astype(x.dtype, copy=False),)

    def backward(self, indexes: tuple, grad_outputs: tuple) -> tuple:
        """Returns the gradient where the input was within the range."""
        (gy,) = grad_outputs
        return (gy * self._is_within.astype(gy.dtype),)


def fake_quantize(x: Any, affine: Affine) -> chainer.Variable:
    """Returns an array, rounded to whole numbers times a scale.

    Args:
        x (chainer.Variable or array): Floating-point numbers of any shape.
        affine (Affine): The mapping to whole numbers.

    Example:
        >>> import numpy as np
        >>> x = np.array([-3.0, 0.2, 0.6, 9.0], np.float32)
        >>> fake_quantize(x, Affine.of_range(-1, 1, 2, True)).array.tolist()
        [-1.0, 0.0, 1.0, 1.0]
    """
    (y,) = FakeQuantize(affine).apply((x,))
    return y
