"""Values in the attributes of layers that last from one call to the next.

::

    LSTM          lstm.h, lstm.c           variables
    users' own    self.memory, self.box    also in lists, tuples, dictionaries, objects

Parameters and persistents are left out: a pipeline treats them on their own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import chainer

from divisible import Divisible

# Longer lists are logs, or data.
_MOST_ITEMS = 64
# Types of attributes that are never searched for values.
_PLAIN = (chainer.Link, chainer.Parameter, chainer.backend.Device, str)
# Attributes of ChainList and Sequential with their links, which are owners themselves.
_CHILDREN = ("_children", "_layers")


class Slot(NamedTuple):
    """A place in which values lie from call to call.

    Attributes:
        path: Path of the attribute, for messages, such as ``/3/lstm.h``.
        attributes: All attributes of the object.
        keys: Name of the attribute, and keys within its value that lead to the place.
    """

    path: str
    attributes: Mapping[str, Any]
    keys: tuple

    @property
    def is_inside(self) -> bool:
        """Whether the place is in a list, a dictionary or an object."""
        return len(self.keys) > 1 or isinstance(self.attributes[self.keys[0]], list)

    def values(self) -> list[Any]:
        """Returns the variables and arrays in this place."""
        value: Any = self.attributes
        for key in self.keys:
            value = (_items(value) or {}).get(key)
        return list(_leaves(value))

    def arrays(self) -> list[Any]:
        """Returns the arrays in this place, also those of variables."""
        return list(map(chainer.as_array, self.values()))

    def has_graph(self) -> bool:
        """Returns whether a backward would go on from this place."""
        return any(getattr(x, "creator_node", None) for x in self.values())

    def may_be_state(self, n_samples: int) -> bool:
        """Returns whether a forward of ``n_samples`` may have left its state here.

        A plain array is taken for a state only if one of its first two axes has a row
        for each sample, as in ``L.NStepLSTM``. Others are constants and running
        averages.
        """
        for x in self.values():
            if isinstance(x, chainer.Variable):
                return True
            if x.ndim > 1 and 1 < n_samples in x.shape[: min(2, x.ndim - 1)]:
                return True
        return False


def slots(path: str, owner: Any) -> Iterator[Slot]:
    """Yields the places in an object where variables or arrays may be.

    Args:
        path (str): Path of the object.
        owner: A link, or another object with attributes.

    Example:
        >>> import chainer.links as L
        >>> import numpy as np
        >>> lstm = L.LSTM(2, 3)
        >>> y = lstm(np.ones((4, 2), np.float32))
        >>> sorted(slot.path for slot in slots("/3", lstm) if slot.values())
        ['/3.c', '/3.h']
    """
    attributes = vars(owner)
    for name, value in attributes.items():
        if not (_may_hold(type(value)) and _is_unregistered(owner, name)):
            continue
        items = _items(value)
        if items is None:
            yield Slot(f"{path}.{name}", attributes, (name,))
            continue
        # Empty containers too, as something may be put into them.
        for key in itertools.islice(items or [None], _MOST_ITEMS):
            yield Slot(f"{path}.{name}", attributes, (name, key))


def owners(layers: Iterable[Any], start: int) -> Iterator[tuple[str, Any]]:
    """Yields all objects that may keep values, with their paths: links and others.

    Args:
        layers: The layers.
        start (int): Position of the first layer in the model.
    """
    for position, layer in enumerate(layers, start):
        owner = getattr(layer, "__self__", layer)
        if isinstance(owner, chainer.Link):
            for path, link in owner.namedlinks():
                yield f"/{position}{path}".rstrip("/"), link
        elif hasattr(owner, "__dict__"):
            yield f"/{position}", owner
        if isinstance(layer, (chainer.Sequential, Divisible)):
            for path, inner in owners(layer, 0):
                yield f"/{position}{path}", inner


@functools.lru_cache(maxsize=1000)
def _may_hold(kind: type) -> bool:
    """Returns whether objects of a type are, or may contain, variables or arrays."""
    if issubclass(kind, _PLAIN):
        return False
    if issubclass(kind, (*_arrays(), list, tuple, Mapping)):
        return True
    # Neither objects that only have methods, nor functions and initializers.
    is_callable = any("__call__" in vars(base) for base in kind.__mro__)
    return kind.__dictoffset__ != 0 and not is_callable


def _is_unregistered(owner: Any, name: str) -> bool:
    if not isinstance(owner, chainer.Link):
        return True
    if name in _CHILDREN and isinstance(owner, chainer.ChainList):
        return False
    return name not in owner._params and name not in owner._persistent


def _arrays() -> tuple[type, ...]:
    return (chainer.Variable, *chainer.get_array_types())


def _items(value: Any) -> Mapping | None:
    """Returns the entries of a dictionary, or an object's attributes; else ``None``."""
    if isinstance(value, (*_arrays(), list, tuple)):
        return None
    return value if isinstance(value, Mapping) else getattr(value, "__dict__", None)


def _leaves(value: Any, depth: int = 2) -> Iterator[Any]:
    """Yields the variables and arrays in a value, parameters excepted."""
    if isinstance(value, (list, tuple)):
        if depth and len(value) <= _MOST_ITEMS:
            for item in value:
                yield from _leaves(item, depth - 1)
        return
    if isinstance(value, chainer.Parameter):
        return
    # A variable may have no array yet.
    if isinstance(value, _arrays()) and chainer.as_array(value) is not None:
        yield value
