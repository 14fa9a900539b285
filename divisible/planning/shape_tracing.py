"""Calls of layers without arithmetic, which find the shapes of all arrays.

A hook of Chainer's gets each function before it computes, and puts a rule in the place
of its ``forward``. All else is as in a call: type checks, the graph, what functions
hold::

    layer(x) -- function.apply -- hook -- function.forward = rule -- graph, outputs

So the code of the layers runs, and none of Chainer's arithmetic. Layers are copied, so
that a call changes nothing in the model. The arrays of parameters are not copied, and
parameters that get their sizes in the first call are not made.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any, TypeVar

import chainer

from divisible.deferred.layers import DeferredLayers
from divisible.deferred.scope import deferred_init
from divisible.model import Divisible
from divisible.planning.shape_rules import shapes_of

_Link = TypeVar("_Link", bound=chainer.Link)


class _Rules(chainer.FunctionHook):
    """Puts rules in place of arithmetic, in this thread."""

    name = "divisible.shape_rules"

    def forward_preprocess(self, function: Any, in_data: Any) -> None:
        """Replaces ``forward`` for this call."""
        function.forward = functools.partial(shapes_of, function)

    def forward_postprocess(self, function: Any, in_data: Any) -> None:
        """Gives the function its own ``forward`` again."""
        del function.forward


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Makes Chainer's functions find shapes, and compute nothing.

    Example:
        >>> import chainer.functions as F
        >>> from divisible.planning.shape_arrays import ShapeArray
        >>> with shapes_only():
        ...     y = F.max_pooling_2d(ShapeArray((64, 3, 224, 224), "f"), 2)
        >>> y.shape, y.array.nbytes
        ((64, 3, 112, 112), 9633792)
    """
    with (
        _Rules(),
        deferred_init(),
        chainer.using_config("train", True),
        chainer.using_config("use_ideep", "never"),
        chainer.using_config("debug", False),
        chainer.force_backprop_mode(),
    ):
        yield


def layer_copy(model: Divisible, position: int) -> Divisible:
    """Returns a copy of one layer that shares its parameters' arrays.

    Args:
        model: The undivided model.
        position: Position of the layer.
    """
    copied = link_copy(model.view(position, position + 1))
    # A call of the copy needs no layer that is made.
    copied._deferred = DeferredLayers()
    return copied


def link_copy(link: _Link) -> _Link:
    """Returns a copy of a link that shares its parameters' arrays.

    The copy has other arrays of its own, because the link's code may change them.
    """
    memo: dict[int, Any] = {}
    for param in link.params(False):
        memo.update((id(array), array) for array in _arrays(param))
    return copy.deepcopy(link, memo)


def _arrays(param: chainer.Parameter) -> Iterator[Any]:
    if param.is_initialized:
        yield from (param.array, param.grad)
