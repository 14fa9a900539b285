"""Functions that a chain calls between two links, as layers.

A function is seen in two minibatches of different size. What is alike in both belongs
to the model; a shape that follows the number of samples is written so that it follows
that of a microbatch as well::

    two samples             three samples           layer
    Softmax(axis=1)         Softmax(axis=1)         the same
    Reshape(shape=(2, 9))   Reshape(shape=(3, 9))   Reshape(shape=(-1, 9))
    MulConstant(value=1/2)  MulConstant(value=1/3)  refused: it is no layer
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np
from chainer import FunctionNode
from chainer.functions.activation.relu import ReLU
from chainer.functions.activation.sigmoid import Sigmoid
from chainer.functions.activation.tanh import Tanh
from chainer.functions.array.reshape import Reshape
from chainer.functions.math.basic_math import Add
from chainer.functions.noise.dropout import Dropout
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D
from chainer.functions.pooling.max_pooling_nd import MaxPoolingND

from divisible.chains.calls import Call, ChainError

#: What a function has from its call, and not from its arguments.
_OF_CALLS = {"_input_layouts", "stack", "_cnt"}


class FunctionLayer:
    """A layer that applies a function as a chain did.

    Args:
        function (chainer.FunctionNode): As it was before it was applied.

    Example:
        >>> import numpy as np
        >>> from chainer.functions.activation.softmax import Softmax
        >>> layer = FunctionLayer(Softmax(axis=0))
        >>> layer, layer(np.zeros((2, 1), np.float32)).array.tolist()
        (Softmax(axis=0), [[0.5], [0.5]])
    """

    def __init__(self, function: FunctionNode) -> None:
        self._function = function

    def __call__(self, *inputs: Any) -> Any:
        """Applies a copy of the function, which is applied once only."""
        outputs = copy.copy(self._function).apply(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def __repr__(self) -> str:
        given = arguments(self._function)
        text = ", ".join(f"{name.lstrip('_')}={given[name]!r}" for name in given)
        return f"{type(self._function).__name__}({text})"


def function_layer(call: Call, other: Call) -> Callable[..., Any]:
    """Returns a layer that does what a function does, for any number of samples.

    Args:
        call (Call): Of the function.
        other (Call): Of the same one, with another number of samples.

    Raises:
        ChainError: If its arguments depend on the minibatch.
    """
    function = call.callee
    if isinstance(function, chainer.function.FunctionAdapter):
        raise ChainError(
            f"{function.label} is a chainer.Function of the old kind, which is called"
            f" once only: put the call into the forward of a link of its own"
        )
    if isinstance(function, Reshape):
        return FunctionLayer(Reshape(_for_any_samples(call, other)))
    mine, theirs = arguments(function), arguments(other.callee)
    for name in mine.keys() | theirs.keys():
        if not _is_same(mine.get(name), theirs.get(name)):
            raise ChainError(
                f"{call.title} is called with {name.lstrip('_')} = {mine.get(name)!r}"
                f" for one minibatch, and {theirs.get(name)!r} for another one, and a"
                f" layer has one for all: put the call into the forward of a link of"
                f" its own"
            )
    readable = _READABLE.get(type(function))
    return FunctionLayer(function) if readable is None else readable(function)


def arguments(function: FunctionNode) -> dict[str, Any]:
    """Returns what tells a function from others of its class."""
    names = sorted(vars(function).keys() - _OF_CALLS)
    return {name: vars(function)[name] for name in names}


def _for_any_samples(call: Call, other: Call) -> tuple[int, ...]:
    """Returns the shape that the two make, with -1 where it follows the minibatch."""
    (mine,), (theirs,) = call.shapes, other.shapes
    unlike = [i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b]
    if len(mine) != len(theirs) or len(unlike) > 1:
        raise ChainError(
            f"{call.title} makes the shape {mine} of one minibatch, and {theirs} of"
            f" another one: put the call into the forward of a link of its own"
        )
    return tuple(-1 if i in unlike else n for i, n in enumerate(mine))


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, chainer.get_array_types()):
        alike = type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype
        return alike and bool((a == b).all())
    if isinstance(a, (tuple, list)):
        alike = type(a) is type(b) and len(a) == len(b)
        return alike and all(map(_is_same, a, b))
    return type(a) is type(b) and bool(np.all(a == b))


def _max_pooling(f: MaxPoolingND) -> Callable[..., Any]:
    if f.ndim != 2 or f.return_indices:
        return FunctionLayer(f)
    pooling = partial(F.max_pooling_2d, ksize=f.ksize, stride=f.stride, pad=f.pad)
    return pooling if f.cover_all else partial(pooling, cover_all=False)


def _average_pooling(f: AveragePooling2D) -> Callable[..., Any]:
    window = {"ksize": (f.kh, f.kw), "stride": (f.sy, f.sx), "pad": (f.ph, f.pw)}
    return partial(F.average_pooling_2d, **window)


def _dropout(f: Dropout) -> Callable[..., Any]:
    # Not the function itself: in test mode there is none.
    if f.mask is not None or f.return_mask:
        raise ChainError(
            "the function Dropout is called with mask or return_mask: put the call into"
            " the forward of a link of its own"
        )
    return partial(F.dropout, ratio=f.dropout_ratio)


# What one would have written oneself.
_READABLE: dict[type, Callable[[Any], Callable[..., Any]]] = {
    ReLU: lambda f: F.relu,
    Sigmoid: lambda f: F.sigmoid,
    Tanh: lambda f: F.tanh,
    Add: lambda f: F.add,
    Dropout: _dropout,
    MaxPoolingND: _max_pooling,
    AveragePooling2D: _average_pooling,
}
