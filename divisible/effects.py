"""Whether a call of a layer may change something outside of the layer.

A trial call of a copy must leave no trace. Copies of links and other objects have
copies of what belongs to them. But functions are not copied, and neither are hooks of
links::

    F.relu                                     Chainer's own: no effect
    lambda x: F.max_pooling_2d(x, 2)           names modules and functions: no effect
    lambda x: seen.append(x.shape) or x        names a list, which may change
    L.Linear(4, 4) with SpectralNormalization  its hook has a state
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

import chainer

# Functions of Python that change nothing. Others, such as print, open and next, may.
_PURE = (
    abs,
    all,
    any,
    bool,
    dict,
    divmod,
    enumerate,
    float,
    getattr,
    hasattr,
    hash,
    id,
    int,
    isinstance,
    issubclass,
    len,
    list,
    map,
    max,
    min,
    pow,
    range,
    repr,
    reversed,
    round,
    set,
    slice,
    sorted,
    str,
    sum,
    super,
    tuple,
    type,
    zip,
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, types.ModuleType)
# Packages whose functions change nothing, up to random numbers.
_TRUSTED = ("chainer", "numpy", "cupy", "divisible", "mixed_precision", "math")


def effect_of(layers: Iterable[Any]) -> str:
    """Returns why a call of some layers may change something; empty if it may not.

    Args:
        layers: Links, functions and other callables.

    Example:
        >>> import chainer.links as L
        >>> spectral = chainer.link_hooks.SpectralNormalization()
        >>> link = L.Linear(2, 2).add_hook(spectral)
        >>> effect_of([link])
        'a Linear has the hook SpectralNormalization'
    """
    if chainer.get_function_hooks() or chainer._get_link_hooks():
        return "hooks watch all calls"
    return next(filter(None, map(_effect, layers)), "")


def _effect(layer: Any) -> str:
    if isinstance(layer, functools.partial):
        return _effect(layer.func)
    if isinstance(layer, types.FunctionType):
        return _effect_of_function(layer, frozenset())
    if not isinstance(layer, chainer.Link):
        return _effect_of_class(type(layer), "__call__")
    for link in layer.links():
        for hook in link._local_link_hooks or ():
            return f"a {type(link).__name__} has the hook {hook}"
        for name in ("forward", "__call__"):
            if effect := _effect_of_class(type(link), name):
                return effect
    return ""


def _effect_of_class(kind: type, name: str) -> str:
    """Checks a method of a class; a class of C has none to check."""
    method = getattr(kind, name, None)
    if not isinstance(method, types.FunctionType):
        return ""
    return _effect_of_function(method, frozenset())


def _effect_of_function(function: types.FunctionType, within: frozenset) -> str:
    """Checks all that a function names, and the functions among that."""
    module = (function.__module__ or "").partition(".")[0]
    if module in _TRUSTED or function in within:
        return ""
    within |= {function}
    named = inspect.getclosurevars(function)
    for name, value in named.builtins.items():
        if value not in _PURE and not _is_plain(value):
            return f"a function named {function.__name__} calls {name}"
    for name, value in {**named.globals, **named.nonlocals}.items():
        if isinstance(value, types.FunctionType):
            effect = _effect_of_function(value, within)
        else:
            effect = "" if _is_plain(value) else f"uses {name!r}, {_noun(value)}"
            effect = effect and f"a function named {function.__name__} {effect}"
        if effect:
            return effect
    return ""


def _is_plain(value: Any) -> bool:
    """Returns whether a value cannot change, or is a name of code."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _noun(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
