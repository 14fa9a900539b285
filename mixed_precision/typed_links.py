"""Links that compute in types of their own, within a float16 model.

A link keeps its parameters, its path and its name; it gets a subclass of its class::

    x -> its type -> forward of the class, with its types -> type around it -> y
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any, Callable

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible.link_parts import LinkPart, with_part
from mixed_precision import half_sum_links
from mixed_precision.layer_types import FLOAT16, LayerTypes

#: Classes that may have other types backward than forward: all their numbers are their
#: inputs, outputs and own parameters.
_PLAIN = (
    L.Linear,
    L.Convolution2D,
    L.ConvolutionND,
    L.DilatedConvolution2D,
    L.Deconvolution2D,
    L.DeconvolutionND,
    L.EmbedID,
)


class Typed(LinkPart):
    """A subclass's part of a link: casts inputs and outputs.

    Attributes:
        types: Types of the link.
        returned: Dtype of its outputs; ``None`` for that of the link.
        is_kept: Whether the types are its own, rather than those of the model.
    """

    types: LayerTypes
    returned: str | None
    is_kept: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the link in its types."""
        types = self.types
        enter = functools.partial(_cast, dtype=types.array_type)
        args = _each(enter, args)
        kwargs = {name: _each(enter, value) for name, value in kwargs.items()}
        if types.are_alike:
            y = super().__call__(*args, **kwargs)
        else:
            if any(param.array is None for param in self.params()):
                # A parameter can be rounded when a first call has made it.
                with chainer.no_backprop_mode():
                    super().__call__(*args, **kwargs)
            rounding = functools.partial(_round, types=types)
            args = _each(rounding, args)
            with _rounded_parameters(self, types):
                y = super().__call__(*args, **kwargs)
            y = _each(rounding, y)
        if self.returned is None:
            return y
        return _each(functools.partial(_cast, dtype=self.returned), y)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the forward of the class."""
        if self.types.has_half_sums:
            return half_sum_links.apply(self, self.types, *args, **kwargs)
        return super().forward(*args, **kwargs)


def set_types(
    link: chainer.Link, types: LayerTypes, returned: str | None, is_kept: bool
) -> None:
    """Makes a link compute in some types; :class:`Typed` has the arguments."""
    if not isinstance(link, Typed):
        link.__class__ = with_part(type(link), Typed)
    link.types, link.returned, link.is_kept = types, returned, is_kept


def check_types(path: str, link: chainer.Link, types: LayerTypes) -> None:
    """Refuses types that a link cannot compute in.

    Raises:
        ValueError: If the link cannot compute in these types.
    """
    kind = link.plain_kind if isinstance(link, Typed) else type(link)
    if not types.are_alike and not issubclass(kind, _PLAIN):
        names = ", ".join(each.__name__ for each in _PLAIN)
        raise ValueError(
            f"keep: {path} is {kind.__name__}, which cannot have a forward_type of"
            f" {types.forward_type} and a backward_type of {types.backward_type}: give"
            f" both the same type, or name links within it of the classes {names}"
        )
    reason = half_sum_links.why_not(kind, link) if types.has_half_sums else ""
    if reason:
        raise ValueError(
            f"keep: {path} cannot add up products in float16, because {reason}: leave"
            f" out forward_math and backward_math, or name links of the classes Linear"
            f" and Convolution2D"
        )


def _each(function: Callable[[Any], Any], values: Any) -> Any:
    """Applies a function to floating-point arrays and variables, also within others."""
    if isinstance(values, (tuple, list)):
        make = getattr(values, "_make", type(values))
        return make([_each(function, value) for value in values])
    if isinstance(values, dict):
        changed = copy.copy(values)
        changed.update({name: _each(function, values[name]) for name in values})
        return changed
    is_array = isinstance(values, (chainer.Variable, *chainer.get_array_types()))
    return function(values) if is_array and values.dtype.kind == "f" else values


def _cast(x: Any, dtype: str) -> Any:
    return x if x.dtype == dtype else F.cast(x, dtype)


def _round(x: Any, types: LayerTypes) -> chainer.Variable:
    """Rounds numbers, or their gradients, to float16; the dtype stays float32."""
    forward, backward = types.forward_type, types.backward_type
    return _Rounding(forward == FLOAT16, backward == FLOAT16).apply((x,))[0]


class _Rounding(chainer.FunctionNode):
    """Rounds float32 numbers to those of float16, forward or backward."""

    def __init__(self, forward: bool, backward: bool) -> None:
        super().__init__()
        self._rounds_forward, self._rounds_backward = forward, backward

    def forward(self, inputs: tuple) -> tuple:
        """Rounds an array; numbers beyond float16 become infinite."""
        (x,) = inputs
        if not self._rounds_forward:
            return (x,)
        # The loss scale looks for infinities.
        with np.errstate(over="ignore"):
            return (x.astype(np.float16).astype(x.dtype),)

    def backward(self, indexes: tuple, grad_outputs: tuple) -> tuple:
        """Rounds the gradient."""
        return _Rounding(self._rounds_backward, False).apply(grad_outputs)


@contextlib.contextmanager
def _rounded_parameters(link: chainer.Link, types: LayerTypes) -> Iterator[None]:
    """Replaces the parameters by rounded ones for a forward of the class."""
    own = {name: getattr(link, name) for name in link._params}
    # Bypasses the link's own setting of attributes, which would register them.
    vars(link).update({name: _round(param, types) for name, param in own.items()})
    try:
        yield
    finally:
        vars(link).update(own)
