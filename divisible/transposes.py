"""Parameters that layers use transposed, such as the decoder's of an autoencoder.

After ``model.tie('/0/W', '/2/W', transpose=True)`` the layers at 0 and 2 have one
parameter ``W``. The later layer has its transpose while it computes, and in files::

    layer    between calls    in a call           in a file
    0        W                W                   W
    2        W                F.transpose(W)      W.T

So an optimizer gets one parameter, and a file is like that of a model without ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable

import chainer
from chainer import Link, Parameter


class Transposes:
    """The parameters that layers of a model use transposed.

    Copies of a model and its stages share one such object, so it never changes.

    Args:
        paths: Paths of the parameters below a layer, such as ``/W``, by the position
            that names the layer.

    Attributes:
        paths: The given paths, without positions that have none.

    Example:
        >>> transposes = Transposes().toggled({2: ['/W']})
        >>> 2 in transposes, bool(transposes.toggled({2: ['/W']}))
        (True, False)
    """

    def __init__(self, paths: Mapping[int, Iterable[str]] | None = None) -> None:
        sets = {position: frozenset(p) for position, p in (paths or {}).items()}
        self.paths = {position: found for position, found in sets.items() if found}

    def __bool__(self) -> bool:
        """Returns whether there are any."""
        return bool(self.paths)

    def __contains__(self, position: int | None) -> bool:
        """Returns whether the layer of that name uses a parameter transposed."""
        return position in self.paths

    def toggled(self, paths: Mapping[int, Iterable[str]]) -> Transposes:
        """Returns these with given paths added, or removed if they are there already.

        Args:
            paths: Paths by position; see the class.
        """
        found: dict[int, frozenset[str]] = dict(self.paths)
        for position, more in paths.items():
            found[position] = found.get(position, frozenset()) ^ set(more)
        return Transposes(found)

    def dissolved(
        self, layer: Link, position: int, links: Iterable[Link]
    ) -> Transposes:
        """Gives links the transposes as their own parameters; returns the other paths.

        Args:
            layer: The layer, in which the links may be.
            position (int): The position that names the layer.
            links: The links that are to share no transposed parameter any more.
        """
        wanted, inner = {id(link) for link in links}, dict(layer.namedlinks())
        gone = []
        for path in self.paths.get(position, ()):
            above, name = path.rsplit("/", 1)
            link = inner[above or "/"]
            if id(link) in wanted:
                param = Parameter(link.xp.ascontiguousarray(vars(link)[name].array.T))
                param.name = name
                vars(link)[name] = param
                gone.append(path)
        return self.toggled({position: gone})

    @contextmanager
    def given_to(
        self,
        layer: Link,
        position: int,
        transpose: Callable[[Parameter], Any] = chainer.functions.transpose,
    ) -> Iterator[None]:
        """Gives a layer the transposes of its parameters within the block.

        Args:
            layer: The layer.
            position (int): The position that names the layer.
            transpose: Function that returns the transpose.
        """
        links = dict(layer.namedlinks())
        places = []
        for path in self.paths.get(position, ()):
            above, name = path.rsplit("/", 1)
            attributes = vars(links[above or "/"])
            places.append((attributes, name, attributes[name]))
        try:
            for attributes, name, param in places:
                attributes[name] = transpose(param)
            yield
        finally:
            for attributes, name, param in places:
                attributes[name] = param

    def serialize(
        self, layer: Link, serializer: chainer.AbstractSerializer, position: int
    ) -> None:
        """Loads or saves a layer, with each weight as the layer uses it.

        Args:
            layer: The layer.
            serializer: The serializer to load from or save to.
            position (int): The position that names the layer.
        """
        with self.given_to(layer, position, lambda param: Parameter(param.array.T)):
            layer.serialize(serializer)
