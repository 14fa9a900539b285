"""Parts that the class of a link gets, so that the link computes in another way.

A link keeps its parameters, its path and its name. Its class becomes a subclass of the
part and of the class before::

    class Linear(Part, Linear)

Such a class has no module, so copies and pickles are told how to make it.
"""

from __future__ import annotations

import functools

import chainer


class LinkPart:
    """Base class of parts.

    Attributes:
        plain_kind: Class of the link without this part.

    Example:
        >>> import chainer.links as L, numpy as np
        >>> class Doubled(LinkPart):
        ...     def forward(self, x):
        ...         return 2 * super().forward(x)
        >>> link = L.Linear(2, 2, initialW=1)
        >>> link.__class__ = with_part(type(link), Doubled)
        >>> link(np.ones((1, 2), np.float32)).array, type(link).__name__
        (array([[4., 4.]], dtype=float32), 'Linear')
    """

    plain_kind: type

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Tells copies and pickles how to make the class."""
        _, _, *rest = super().__reduce_ex__(max(2, protocol))
        kind, parts = type(self), []
        while issubclass(kind, LinkPart):
            parts.append(kind.__bases__[0])
            kind = kind.plain_kind
        return _new, (kind, *reversed(parts)), *rest


@functools.cache
def with_part(kind: type, part: type[LinkPart]) -> type:
    """Returns the subclass of a class of links; its name is the same, as in print."""
    attributes = {"__module__": kind.__module__, "plain_kind": kind}
    return type(kind.__name__, (part, kind), attributes)


def _new(kind: type, *parts: type[LinkPart]) -> chainer.Link:
    """Returns an empty link with parts, to be filled by a pickle."""
    for part in parts:
        kind = with_part(kind, part)
    return kind.__new__(kind)
