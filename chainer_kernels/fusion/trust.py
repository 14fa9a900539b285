"""Checks that callables may be traced: every call must compute the same functions."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, TypeVar

import chainer
import numpy as np

from chainer_kernels.fusion.heads import is_head

_MARK = "chainer_kernels_is_fusible"

Marked = TypeVar("Marked", bound=Callable)


def fusible(function: Marked) -> Marked:
    """Marks a function, or a link's ``forward``, as one that may be fused.

    The function runs once for each shape of its inputs; later calls repeat the
    functions of Chainer that ran then. So the mark is a promise:

    - Every call runs the same functions of Chainer in the same order.
    - The calls do not depend on the values of arrays, on the time, or on anything else
      that changes between calls, except ``chainer.config.train``.
    - Numbers from outside of the function never change.
    - The function has no side effects.

    Args:
        function: The function, the method, or the class of a link.

    Returns:
        The argument, now marked.

    Example:
        >>> import chainer.functions as F
        >>> @fusible
        ... def gate(x, a, b):
        ...     return x + a * F.sigmoid(b)
    """
    setattr(function, _MARK, True)
    return function


def is_marked(link: chainer.Link) -> bool:
    """Returns whether a link's class, or its ``forward``, is marked.

    Example:
        >>> @fusible
        ... class Gate(chainer.Link):
        ...     def forward(self, x, y):
        ...         return x * y
        >>> is_marked(Gate())
        True
    """
    forward = getattr(link, "forward", None)
    return getattr(type(link), _MARK, False) or getattr(forward, _MARK, False)


def why_not(layer: Any) -> str | None:
    """Returns why a callable must not be traced; ``None`` if it may be.

    Example:
        >>> import chainer.functions as F
        >>> why_not(F.relu)
        >>> why_not(lambda x: x + 1)
        'it is not marked @chainer_kernels.fusible'
    """
    if isinstance(layer, functools.partial):
        given = [*layer.args, *layer.keywords.values()]
        if not all(each is None or np.isscalar(each) for each in given):
            return "it is called with more than numbers"
        return why_not(layer.func)
    if isinstance(layer, chainer.Link):
        return _why_not_link(layer)
    if getattr(layer, _MARK, False):
        return None
    module = getattr(layer, "__module__", None) or ""
    is_chainers = isinstance(layer, types.FunctionType) and module.startswith(
        "chainer.functions."
    )
    return None if is_chainers else "it is not marked @chainer_kernels.fusible"


def _why_not_link(link: chainer.Link) -> str | None:
    # Batch normalizations that begin a chain may have both: each call reads their
    # current parameters and state.
    others = [each for each in link.links() if not is_head(each)]
    if any(each._params for each in others):
        return "it has parameters"
    if any(each._persistent for each in others):
        return "it has a state"
    if type(link) is chainer.Sequential:
        return next(filter(None, map(why_not, link)), None)
    if is_marked(link) or type(link).__module__.startswith("chainer.links."):
        return None
    return "its forward is not marked @chainer_kernels.fusible"
