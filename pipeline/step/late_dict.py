"""A dict with values that are read when asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple


class LateValue(NamedTuple):
    """A value that nobody has read yet.

    Attributes:
        name: Name of the value.
        read: Waits for this value and others, and returns them by name.
    """

    name: str
    read: Callable[[], Mapping[str, Any]]

    def value(self) -> Any:
        """Returns the value; waits for it."""
        return self.read()[self.name]

    def __float__(self) -> float:
        return float(self.value())


def _reading(method: Callable) -> Callable:
    """Returns a method of dict that reads all values first, and those it is given."""

    @functools.wraps(method)
    def read_first(self: LateDict, *args: Any) -> Any:
        for each in (self, *args):
            if isinstance(each, LateDict):
                each.read()
        return method(self, *args)

    return read_first


class LateDict(dict):
    """A dict, some values of which may still be on their way from other ranks.

    Whatever reads a value waits for it, and gets what an ordinary dict would have:
    ``late['loss']``, ``get``, ``items``, ``values``, ``dict(late)``, ``{**late}``,
    comparisons, texts and copies. A copy is an ordinary dict, also one made by
    ``pickle``. The names are known from the beginning. ``len``, ``in`` and ``keys`` do
    not wait, nor does storing a value.

    Args:
        values: Values by name; a `LateValue` for each one that comes later.

    Example:
        >>> loss = LateValue('loss', lambda: print('waits') or {'loss': 2.5})
        >>> late = LateDict(loss=loss, lr=0.1)
        >>> list(late), late['lr']
        (['loss', 'lr'], 0.1)
        >>> late
        waits
        {'loss': 2.5, 'lr': 0.1}
    """

    __slots__ = ()

    def unread(self) -> dict[str, Any]:
        """Returns a copy, in which a `LateValue` stands for a value not read yet."""
        return dict(super().items())

    def read(self) -> None:
        """Waits for all values."""
        found: dict[Callable, Mapping[str, Any]] = {}
        for key, late in [*super().items()]:
            if isinstance(late, LateValue):
                if late.read not in found:
                    found[late.read] = late.read()
                self[key] = found[late.read][late.name]

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, LateValue):
            self.read()
            value = super().__getitem__(name)
        return value

    get, setdefault = _reading(dict.get), _reading(dict.setdefault)
    pop, popitem = _reading(dict.pop), _reading(dict.popitem)
    items, values = _reading(dict.items), _reading(dict.values)
    __eq__, __ne__ = _reading(dict.__eq__), _reading(dict.__ne__)
    __repr__, __hash__ = _reading(dict.__repr__), None

    def __iter__(self) -> Iterator[str]:
        # If this method were dict's own, dict(late) would copy values without reading
        # them.
        return super().__iter__()

    def copy(self) -> dict[str, Any]:
        """Returns an ordinary dict with the same values."""
        return dict(self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return dict, (self.copy(),)
