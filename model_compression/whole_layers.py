"""Layers of weights and inputs of 8 bits, computed in whole numbers.

A stored layer computes so in inference, where the processor has products of whole
numbers. This needs kernels in force, arrays of NumPy, and ``no_backprop_mode``, for
there is no backward.
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
from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import are_float32
from model_compression.quantized_links import is_active, range_of

_FORWARDS = {L.Linear.forward: "Linear", L.Convolution2D.forward: "Convolution2D"}


class WholeNumbers(FunctionNode):
    """The function of a layer that rounds its inputs itself, for hooks.

    Args:
        compute: Function from inputs to outputs.
    """

    def __init__(self, compute: Callable[[np.ndarray], np.ndarray]) -> None:
        self._compute = compute

    def forward(self, inputs: tuple) -> tuple:
        """Returns the outputs."""
        (x,) = inputs
        return (self._compute(x),)


def output(link: chainer.Link, x: Any, n_batch_axes: int = 1) -> Any:
    """Returns the outputs of a stored layer; ``None`` where it computes otherwise.

    Args:
        link: Link with parameters that are stored in few bits.
        x: Inputs of the link, not rounded.
        n_batch_axes: Number of the inputs' axes that stand for samples, for a linear
            layer.
    """
    array = x.array if isinstance(x, chainer.Variable) else x
    if (
        chainer.config.enable_backprop
        or not switch.is_ours()
        or not isinstance(array, np.ndarray)
        or why_not(link)
        or not isinstance(link.W_whole, np.ndarray)
    ):
        return None
    b = None if link.b is None else link.b.array
    # Numba takes long to load, and training needs nothing of this module.
    from chainer_kernels.functions import whole_layers

    floats = (array,) if b is None else (array, b)
    if not are_float32(*floats) or not whole_layers.is_offered(link.W_whole.shape):
        return None
    affine = range_of(link, "input", link.ranges.rules["input"])
    options = {
        "inputs": whole_layers.Inputs(
            float(affine.scale), int(affine.zero), affine.highest
        ),
        "weights": whole_layers.Weights(link.W_whole, link.W_scale, link.W_zero),
        "b": b,
    }
    geometry = _geometry(link)
    if geometry is not None:
        if not _reads(link, array.shape, geometry):
            return None
        _note(link, array.shape)
        if not whole_layers.gains(array.shape, link.W_whole.shape, geometry):
            return None
        convolution = functools.partial(
            whole_layers.convolution, **options, geometry=geometry
        )
        return WholeNumbers(convolution).apply((x,))[0]
    samples = array.shape[:n_batch_axes]
    shape = math.prod(samples), math.prod(array.shape[n_batch_axes:])
    if array.ndim <= n_batch_axes or shape[1] != link.W_whole.shape[1]:
        return None
    _note(link, shape)
    linear = functools.partial(whole_layers.linear, **options)
    (y,) = WholeNumbers(linear).apply((F.reshape(x, shape),))
    return F.reshape(y, (*samples, len(link.W_whole)))


def _note(link: chainer.Link, shape: tuple[int, ...]) -> None:
    """Records the shapes of a layer's inputs, for :func:`int8_report`."""
    link.__dict__.setdefault("whole_shapes", {})[shape] = None


def _geometry(link: chainer.Link) -> Geometry | None:
    """Returns the geometry of a convolution; a linear layer has none."""
    if link.W_whole.ndim == 2:
        return None
    pairs = [
        tuple(np.broadcast_to(each, 2).tolist())
        for each in (link.stride, link.pad, link.dilate)
    ]
    return Geometry(link.W_whole.shape[2:], *pairs, link.groups)


def _reads(link: chainer.Link, x: tuple[int, ...], geometry: Geometry) -> bool:
    """Returns whether a convolution can read inputs of a shape."""
    n_channels = link.W_whole.shape[1] * geometry.groups
    return len(x) == 4 and x[1] == n_channels and min(geometry.output_sizes(x[2:])) > 0


def why_not(link: chainer.Link) -> str:
    """Returns why a stored layer never computes in whole numbers; "" if it may."""
    if type(link).stored_kind.forward not in _FORWARDS:
        return f"only {' and '.join(_FORWARDS.values())} compute in whole numbers"
    if "W_whole" not in link._persistent or link.W_dtype.dtype != np.float32:
        return "its weights are not stored in whole numbers for float32"
    is_rounded = hasattr(link, "ranges") and "input" in link.ranges.rules
    if not is_rounded or not is_active(link, "input"):
        return "its inputs are not quantized"
    if not int(link.input_n_seen[0]):
        return "its inputs have no range yet"
    if link.W_whole.ndim > 2 and link.W_whole.dtype != np.int8:
        return "the weights of a convolution must be symmetric for whole numbers"
    return ""


def int8_report(model: chainer.Link) -> str:
    """Returns a line for each layer of few bits: whether it computes in int8.

    Layers measure this at their first call with a shape of inputs, in
    :func:`chainer.no_backprop_mode`, which ``pipe.predict`` uses. Milliseconds are
    those of the products: by whole numbers, and in float32 including the conversion of
    the weights.

    Args:
        model (chainer.Link): Model that :func:`apply` has returned, after it ran.

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
    """Yields the report of a layer, for each shape of inputs."""
    from chainer_kernels import whole_numbers
    from chainer_kernels.functions import whole_layers

    reason = why_not(link)
    if not reason and whole_numbers.instructions() is None:
        needs = " or ".join(whole_numbers.INSTRUCTIONS)
        reason = f"no product of 8-bit numbers here: it needs oneDNN, and {needs}"
    if reason:
        yield f"float32, {reason}"
        return
    shapes = link.__dict__.get("whole_shapes", {})
    W, geometry = link.W_whole.shape, _geometry(link)
    for shape in shapes:
        if geometry is not None and not whole_layers.gains(shape, W, geometry):
            yield (
                f"float32, many outputs of few inputs gain nothing by whole numbers:"
                f" inputs {shape}"
            )
            continue
        choice = whole_layers.choice_of(shape, W, geometry)
        if choice is None:
            yield f"float32, oneDNN has no fast exact product for inputs {shape}"
            continue
        used = "used" if choice.is_whole else "not used"
        yield (
            f"int8 product: {used}, {choice.ms_whole / choice.ms_float32:.2f} of"
            f" float32 ({choice.ms_whole:.3g} and {choice.ms_float32:.3g} ms) for"
            f" inputs {shape}"
        )
    if not shapes:
        yield "not measured yet: it has not run in chainer.no_backprop_mode()"
