"""Activations, element by element."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from chainer_kernels import threads
from chainer_kernels.half_precision import (
    are_singles_or_halves,
    in_float32,
    rounded,
)
from chainer_kernels.layouts import empty_like, flat
from chainer_kernels.loops import activations as loops

Arrays = tuple[np.ndarray, ...]


def relu(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ReLU.forward_cpu``."""
    if not are_singles_or_halves(*inputs):
        return NotImplemented
    function.retain_outputs((0,))
    return _each(loops.relu, inputs)


def relu_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ReLUGrad2.forward_cpu``."""
    if not are_singles_or_halves(*inputs, function.b):
        return NotImplemented
    return _each(loops.relu_grad, (function.b, *inputs))


def leaky_relu(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LeakyReLU.forward_cpu``."""
    if not are_singles_or_halves(*inputs):
        return NotImplemented
    if function.slope >= 0:
        function.retain_outputs((0,))
    else:
        function.retain_inputs((0,))
    return _each(loops.leaky_relu, inputs * 2, function.slope)


def leaky_relu_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``_LeakyReLUGrad.forward_cpu``."""
    if not are_singles_or_halves(*inputs, function.cond):
        return NotImplemented
    return _each(loops.leaky_relu, (function.cond, *inputs), function.slope)


def clipped_relu(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ClippedReLU.forward_cpu``."""
    if not are_singles_or_halves(*inputs):
        return NotImplemented
    function.retain_inputs((0,))
    return _each(loops.clipped_relu, inputs, function.cap)


def clipped_relu_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ClippedReLUGrad2.forward_cpu``."""
    if not are_singles_or_halves(*inputs, function.x):
        return NotImplemented
    return _each(loops.clipped_relu_grad, (function.x, *inputs), function.cap)


def sigmoid(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Sigmoid.forward_cpu``."""
    return _from_output(function, inputs, loops.sigmoid)


def sigmoid_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``SigmoidGrad.forward_cpu``."""
    return _of_output(function, inputs, loops.sigmoid_grad)


def tanh(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Tanh.forward_cpu``."""
    return _from_output(function, inputs, loops.tanh)


def tanh_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``TanhGrad.forward_cpu``."""
    return _of_output(function, inputs, loops.tanh_grad)


def elu(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ELU.forward_cpu``."""
    if not are_singles_or_halves(*inputs):
        return NotImplemented
    if function.alpha < 0:
        function.retain_inputs((0,))
    function.retain_outputs((0,))
    return _each(loops.elu, inputs, function.alpha)


def elu_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``ELUGrad.forward_cpu``."""
    if not are_singles_or_halves(*inputs, function.cond):
        return NotImplemented
    return _each(loops.elu_grad, (function.cond, *inputs), function.alpha)


def _from_output(function: Any, inputs: Arrays, loop: Callable) -> Arrays:
    """Computes a function whose gradient is a function of its output."""
    if not are_singles_or_halves(*inputs):
        return NotImplemented
    function.retain_outputs((0,))
    function._use_cudnn = False
    return _each(loop, inputs)


def _of_output(function: Any, inputs: Arrays, loop: Callable) -> Arrays:
    """Computes such a gradient, of the output and its own gradient."""
    if not are_singles_or_halves(*inputs):
        return NotImplemented
    function.retain_inputs((0, 1))
    return _each(loop, inputs)


def _each(loop: Callable, arrays: Arrays, *numbers: float) -> Arrays:
    """Runs a loop that writes into a new array, in the memory order of the first."""
    dtype, singles = arrays[0].dtype, in_float32(arrays)
    out = empty_like(singles[0])
    # NumPy rounds numbers to the arrays' precision, too.
    numbers = [np.float32(dtype.type(number)) for number in numbers]
    threads.run_slices(loop, flat([*singles, out]), *numbers)
    return (rounded(out, dtype),)
