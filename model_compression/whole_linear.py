"""Linear layers of weights and inputs of 8 bits, computed in whole numbers.

A stored layer computes so in inference, where the processor has products of whole
numbers: with kernels in force, on arrays of NumPy, and outside of training, for there
is no backward.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import FunctionNode

from chainer_kernels import switch
from chainer_kernels.layouts import are_float32
from model_compression.quantized_links import range_of


class WholeLinear(FunctionNode):
    """A linear function of inputs that it rounds itself, as hooks see it.

    Args:
        compute: Takes inputs and returns outputs.
    """

    def __init__(self, compute: Callable[[np.ndarray], np.ndarray]) -> None:
        self._compute = compute

    def forward(self, inputs: tuple) -> tuple:
        """Returns the outputs."""
        (x,) = inputs
        return (self._compute(x),)


def linear(link: chainer.Link, x: Any, n_batch_axes: int = 1) -> Any:
    """Returns what a stored layer gives, or ``None`` where it computes otherwise.

    Args:
        link: With parameters that are stored in few bits.
        x: Its inputs, as they come.
        n_batch_axes: How many of their axes are those of samples.
    """
    array = x.array if isinstance(x, chainer.Variable) else x
    if (
        chainer.config.enable_backprop
        or not switch.is_ours()
        or why_not(link)
        or not isinstance(array, np.ndarray)
        or array.ndim < 2
    ):
        return None
    # Numba takes long to load, and training needs nothing of this.
    from chainer_kernels.functions import whole_linear

    b = None if link.b is None else link.b.array
    samples = array.shape[:n_batch_axes]
    shape = math.prod(samples), math.prod(array.shape[n_batch_axes:])
    n_outputs, n_inputs = link.W_whole.shape
    floats = (array,) if b is None else (array, b)
    if (
        shape[1] != n_inputs
        or not are_float32(*floats)
        or not whole_linear.is_offered(n_inputs)
    ):
        return None
    affine = range_of(link, "input", link.ranges.rules["input"])
    compute = functools.partial(
        whole_linear.linear,
        inputs=whole_linear.Inputs(
            float(affine.scale), int(affine.zero), affine.highest
        ),
        weights=whole_linear.Weights(link.W_whole, link.W_scale, link.W_zero),
        b=b,
    )
    (y,) = WholeLinear(compute).apply((F.reshape(x, shape),))
    return F.reshape(y, (*samples, n_outputs))


def why_not(link: chainer.Link) -> str:
    """Returns why a stored layer never computes in whole numbers, if it does not."""
    if type(link).stored_kind.forward is not L.Linear.forward:
        return "only Linear computes in whole numbers"
    if "W_whole" not in link._persistent or link.W_dtype.dtype != np.float32:
        return "its weights are not stored in whole numbers for float32"
    is_rounded = hasattr(link, "ranges") and "input" in link.ranges.rules
    if not is_rounded or not int(link.input_is_quantized[0]):
        return "its inputs are not quantized"
    if not int(link.input_n_seen[0]):
        return "its inputs have no range yet"
    return ""


def int8_report(model: chainer.Link) -> str:
    """Returns a line for each layer of few bits: whether it computes in int8.

    Layers measure it at their first call with a number of samples, in
    :func:`chainer.no_backprop_mode`, as ``pipe.predict`` has it. Milliseconds are those
    of the product, and the float32 ones make the weights float32 first.

    Args:
        model (chainer.Link): What :func:`apply` has returned, after it ran.

    Example:
        >>> import numpy as np
        >>> from model_compression import CompressionPlan, Quantize, apply
        >>> model = chainer.Sequential(L.Linear(4, 2))
        >>> plan = CompressionPlan([Quantize("int8")])
        >>> print(int8_report(apply(model, plan)))
        /0: float32, its inputs are not quantized
    """
    return "\n".join(
        f"{path}: {words}"
        for path, link in model.namedlinks()
        if hasattr(type(link), "stored_kind")
        for words in _words(link)
    )


def _words(link: chainer.Link) -> Iterator[str]:
    """Generates what is to say of a layer, for each number of samples."""
    from chainer_kernels.functions import whole_linear
    from chainer_kernels.providers import whole_numbers

    reason = why_not(link)
    if not reason and whole_numbers.instructions() is None:
        needs = " or ".join(whole_numbers.INSTRUCTIONS)
        reason = f"no product of 8-bit numbers here: it needs oneDNN, and {needs}"
    if reason:
        yield f"float32, {reason}"
        return
    found = [
        choice
        for choice in whole_linear.choices()
        if link.W_whole.shape == (choice.n_outputs, choice.n_inputs)
    ]
    for choice in found:
        ratio = f"{choice.ms_whole / choice.ms_float32:.2f} of float32"
        used = f"used, {ratio}" if choice.is_whole else f"not used, {ratio}"
        yield (
            f"int8 product: {used}, {choice.n_rows} samples x {choice.n_inputs} x"
            f" {choice.n_outputs}: {choice.ms_whole:.3g} and {choice.ms_float32:.3g} ms"
        )
    if not found:
        yield "not measured yet: it has not run in chainer.no_backprop_mode()"
