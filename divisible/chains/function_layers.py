"""Functions that a chain calls between two links, as layers.

A function is recorded in minibatches of several numbers of samples, lengths and image
sizes. Arguments that are equal in all of them belong to the model. A shape may follow
the number of samples. It is changed to follow the number of samples of a microbatch::

    two samples             three samples           layer
    Softmax(axis=1)         Softmax(axis=1)         the same
    Reshape(shape=(2, 9))   Reshape(shape=(3, 9))   Reshape(shape=(-1, 9))
    MulConstant(value=1/2)  MulConstant(value=1/3)  refused: it is no layer
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

import chainer
import chainer.functions as F
from chainer import FunctionNode
from chainer.functions.activation.relu import ReLU
from chainer.functions.activation.sigmoid import Sigmoid
from chainer.functions.activation.tanh import Tanh
from chainer.functions.array.reshape import Reshape
from chainer.functions.math.basic_math import Add
from chainer.functions.noise.dropout import Dropout
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D
from chainer.functions.pooling.max_pooling_nd import MaxPoolingND

from divisible.chains.arguments import Seen, arguments, fill, followed
from divisible.chains.array_operations import ArrayOperation
from divisible.chains.calls import ChainError
from divisible.chains.constants import SizedArray
from divisible.chains.slots import first_slot, has_slots, put_in


class FunctionLayer:
    """A layer that applies a function in the same way as a chain did.

    Args:
        function (chainer.FunctionNode or chainer.Function): The function as it was
            before it was applied, with a slot in place of each array among its
            arguments.
        follows (dict or None): The arguments that follow shapes of inputs, by name; see
            :func:`~divisible.chains.arguments.followed`.
        n_anchors (int): Number of the last inputs, which give sizes only.

    Example:
        >>> import numpy as np
        >>> from chainer.functions.activation.softmax import Softmax
        >>> layer = FunctionLayer(Softmax(axis=0))
        >>> layer, layer(np.zeros((2, 1), np.float32)).array.tolist()
        (Softmax(axis=0), [[0.5], [0.5]])
    """

    def __init__(
        self,
        function: FunctionNode | chainer.Function,
        follows: Mapping[str, Any] | None = None,
        n_anchors: int = 0,
    ) -> None:
        self._function = function
        self._follows = dict(follows or {})
        self._n_anchors = n_anchors
        given = arguments(function)
        self._slotted = [name for name in given if has_slots(given[name])]
        # Arrays for the slots are the last inputs.
        self._first = min(
            (first_slot(given[name]) for name in self._slotted), default=0
        )

    def __call__(self, *inputs: Any) -> Any:
        """Applies a copy of the function, because a function is applied only once."""
        follows = {name: fill(v, inputs) for name, v in self._follows.items()}
        if self._n_anchors:
            inputs = inputs[: -self._n_anchors]
        if follows and isinstance(self._function, Reshape):
            # A Reshape counts its sizes of -1 when it is made.
            function = Reshape(**follows)
        else:
            function = copy.copy(self._function)
            vars(function).update(follows)
        if self._slotted:
            arrays = [chainer.as_array(x) for x in inputs]
            for name in self._slotted:
                vars(function)[name] = put_in(vars(function)[name], arrays)
            inputs = inputs[: self._first]
        if isinstance(function, chainer.Function):
            return function(*inputs)
        outputs = function.apply(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def __repr__(self) -> str:
        given = {**arguments(self._function), **self._follows}
        text = ", ".join(f"{name.lstrip('_')}={given[name]!r}" for name in given)
        return f"{type(self._function).__name__}({text})"


class ArrayLayer:
    """A layer that applies an operation of NumPy, with arguments that follow inputs.

    Args:
        operation (ArrayOperation): The operation.
        follows (dict): The arguments that follow shapes of inputs, by name.
        n_anchors (int): Number of the last inputs, which give sizes only.
    """

    def __init__(
        self, operation: ArrayOperation, follows: Mapping[str, Any], n_anchors: int = 0
    ) -> None:
        self._operation = operation
        self._follows = dict(follows)
        self._n_anchors = n_anchors

    def __call__(self, *inputs: Any) -> Any:
        """Applies the operation to arrays, or to the arrays of variables."""
        follows = {name: fill(v, inputs) for name, v in self._follows.items()}
        if self._n_anchors:
            inputs = inputs[: -self._n_anchors]
        return self._operation.following(follows)(*inputs)

    def __repr__(self) -> str:
        return repr(self._operation.following(self._follows))


def function_layer(seen: Sequence[Seen]) -> Callable[..., Any]:
    """Returns a layer that applies a function to minibatches of any size.

    Args:
        seen: One call in several minibatches: the first one, one with another number of
            samples, and those of other sizes.

    Raises:
        ChainError: If arguments depend on the minibatch in another way than as sizes
            of inputs.
    """
    function = seen[0].call.callee
    if isinstance(function, SizedArray):
        return function
    follows, n_anchors = followed(seen), seen[0].call.n_anchors
    if isinstance(function, ArrayOperation):
        return ArrayLayer(function, follows, n_anchors) if follows else function
    readable = _READABLE.get(type(function))
    if follows or readable is None:
        return FunctionLayer(function, follows, n_anchors)
    return readable(function)


def _max_pooling(f: MaxPoolingND) -> Callable[..., Any]:
    if f.ndim != 2 or f.return_indices:
        return FunctionLayer(f)
    pooling = partial(F.max_pooling_2d, ksize=f.ksize, stride=f.stride, pad=f.pad)
    return pooling if f.cover_all else partial(pooling, cover_all=False)


def _average_pooling(f: AveragePooling2D) -> Callable[..., Any]:
    window = {"ksize": (f.kh, f.kw), "stride": (f.sy, f.sx), "pad": (f.ph, f.pw)}
    return partial(F.average_pooling_2d, **window)


def _dropout(f: Dropout) -> Callable[..., Any]:
    # The function itself would also drop out values in test mode.
    if f.mask is not None or f.return_mask:
        raise ChainError(
            "the function Dropout is called with mask or return_mask: put the call into"
            " the forward of a link of its own"
        )
    return partial(F.dropout, ratio=f.dropout_ratio)


# Functions that are written as a user would write them.
_READABLE: dict[type, Callable[[Any], Callable[..., Any]]] = {
    ReLU: lambda f: F.relu,
    Sigmoid: lambda f: F.sigmoid,
    Tanh: lambda f: F.tanh,
    Add: lambda f: F.add,
    Dropout: _dropout,
    MaxPoolingND: _max_pooling,
    AveragePooling2D: _average_pooling,
}
