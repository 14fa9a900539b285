"""Finds the deferred arrays in a layer."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from chainer import Link

from divisible.deferred.array import DeferredArray
from divisible.deferred.scope import KeyedInitializer, ever_deferred


class Found(NamedTuple):
    """A deferred array or a variable somewhere in a layer.

    Attributes:
        path: Path below the layer.
        value: The array or variable.
        put: Function that replaces an array; ``None`` where this is not possible.
    """

    path: str
    value: DeferredArray | chainer.Variable
    put: Callable[[np.ndarray], Any] | None


def find(layer: Any) -> Iterator[Found]:
    """Finds the deferred arrays and all variables in a layer's attributes.

    The search includes unregistered ones, and lists, dictionaries and further links.
    Parameters have the paths that ``namedparams`` gives them; their arrays come first.
    """
    seen: set[int] = set()

    def search(value: Any, path: str, put: Callable | None) -> Iterator[Found]:
        if isinstance(value, DeferredArray):
            yield Found(path, value, put)
            return
        if isinstance(value, chainer.Variable):
            # The property ``grad`` raises an error for a gradient that was never
            # cleared.
            arrays = {"array": value.raw_array, "grad": value._grad}
            for name, array in arrays.items():
                if isinstance(array, DeferredArray):
                    where = path if name == "array" else f"{path}.{name}"
                    yield Found(where, array, functools.partial(setattr, value, name))
            yield Found(path, value, None)
            return
        if not isinstance(value, (Link, list, dict, tuple, functools.partial)):
            return
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Link):
            links = [(prefix.rstrip("/"), link) for prefix, link in value.namedlinks()]
            seen.update(id(link) for _, link in links)
            for prefix, link in links:
                for name in sorted(vars(link)):
                    yield from item(vars(link), name, path + prefix)
        elif isinstance(value, list):
            for i in range(len(value)):
                yield from item(value, i, path)
        elif isinstance(value, dict):
            for key in list(value):
                yield from item(value, key, path)
        elif isinstance(value, tuple):
            for i, part in enumerate(value):
                yield from search(part, f"{path}/{i}", None)
        else:
            yield from search((value.args, value.keywords), path, None)

    def item(container: Any, key: Any, path: str) -> Iterator[Found]:
        put = functools.partial(container.__setitem__, key)
        yield from search(container[key], f"{path}/{key}", put)

    if isinstance(layer, (Link, functools.partial)):
        return search(layer, "", None)
    # The layer is a callable object with parameters that Chainer does not know.
    return search(getattr(layer, "__dict__", None), "", None)


def is_deferred(layer: Any) -> bool:
    """Returns whether a layer has anything that is not made yet."""
    return ever_deferred() and any(
        isinstance(found.value, DeferredArray) or _awaits_place(found.value)
        for found in find(layer)
    )


def _awaits_place(variable: chainer.Variable) -> bool:
    keyed = keyed_initializer(variable)
    return keyed is not None and keyed.key is None


def keyed_initializer(value: Any) -> KeyedInitializer | None:
    """Returns the keyed initializer of a parameter, if it has one.

    It may be the ``initializer`` of another initializer, such as one that rounds the
    values.
    """
    initializer = getattr(value, "initializer", None)
    while not (initializer is None or isinstance(initializer, KeyedInitializer)):
        initializer = getattr(initializer, "initializer", None)
    return initializer
