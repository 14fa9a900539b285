"""Activations, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels import threads
from chainer_kernels.layouts import are_float32, empty_like, flat
from chainer_kernels.loops import activations as loops

Arrays = tuple[np.ndarray, ...]


def relu(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ReLU.forward_cpu``."""
    (x,) = inputs
    if not are_float32(x):
        return NotImplemented
    y = empty_like(x)
    threads.run_slices(loops.relu, flat([x, y]))
    function.retain_outputs((0,))
    return (y,)


def relu_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ReLUGrad2.forward_cpu``."""
    (gy,) = inputs
    if not are_float32(gy, function.b):
        return NotImplemented
    gx = empty_like(function.b)
    threads.run_slices(loops.relu_grad, flat([function.b, gy, gx]))
    return (gx,)
