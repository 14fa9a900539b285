"""Arguments of calls of links, as a layer gets them: arrays and variables by position.

::

    def forward(self, x, mask=None, scale=1)

    block(h, None)                  (h,)            None is the default
    block(h, mask=m)                (h, m)
    block(x=h, scale=1)             (h,)
    block(h, None, 2)               refused: scale=2
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible.chains.calls import ChainError, short

_EMPTY = inspect.Parameter.empty


class _Argument(NamedTuple):
    name: str
    value: Any
    default: Any

    @property
    def is_plain(self) -> bool:
        return is_plain(self.value)

    @property
    def is_default(self) -> bool:
        return _is_same(self.value, self.default)


def is_plain(value: Any) -> bool:
    """Returns whether a value can pass from layer to layer."""
    return isinstance(value, (chainer.Variable, *chainer.get_array_types()))


def by_position(
    forward: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping
) -> tuple:
    """Returns the arguments of a call by position, without those at their defaults.

    Args:
        forward: The function with the signature of the call.
        name (str): Name of the link, for messages.
        args: The arguments by position.
        kwargs: The arguments by name.

    Raises:
        ChainError: If other arguments than variables and arrays are given, and they are
            not the defaults.
    """
    if not kwargs and all(map(is_plain, args)):
        return tuple(args)
    found = _arguments(forward, args, kwargs)
    while found and not found[-1].is_plain and found[-1].is_default:
        found.pop()
    wrong = [each for each in found if not each.is_plain]
    if wrong:
        raise _refused(name, min(wrong, key=lambda w: (w.is_default, w.value is None)))
    return tuple(each.value for each in found)


def _arguments(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping
) -> list[_Argument]:
    """Returns all arguments in the order of the signature.

    Arguments that have no position are at the end. They are there only if they are not
    at their defaults.
    """
    try:
        signature = inspect.signature(forward)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        # The call itself raises the error of arguments that do not fit.
        given = [_Argument(f"argument {i}", v, _EMPTY) for i, v in enumerate(args)]
        return given + [_Argument(k, v, _EMPTY) for k, v in kwargs.items()]
    bound.apply_defaults()
    found: list[_Argument] = []
    unplaced: list[_Argument] = []
    for parameter in signature.parameters.values():
        name, value = parameter.name, bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [_Argument(name, each, _EMPTY) for each in value]
        elif parameter.kind is parameter.VAR_KEYWORD:
            unplaced += [_Argument(k, _Named(v), _EMPTY) for k, v in value.items()]
        elif parameter.kind is parameter.KEYWORD_ONLY:
            argument = _Argument(name, _Named(value), parameter.default)
            if not _is_same(value, parameter.default):
                unplaced.append(argument)
        else:
            found.append(_Argument(name, value, parameter.default))
    return found + unplaced


class _Named(NamedTuple):
    """A value that can be given by name only."""

    value: Any


def _is_same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    simple = (bool, int, float, str, tuple, np.number)
    return (
        isinstance(value, simple) and type(value) is type(default) and value == default
    )


def _refused(name: str, argument: _Argument) -> ChainError:
    value = argument.value
    if isinstance(value, _Named):
        value = value.value
    kind = type(value).__name__
    if isinstance(value, (list, tuple, dict)):
        is_of_arrays = value and all(map(is_plain, value))
        content = f" of {len(value)} arrays" if is_of_arrays else ""
        shown = "" if is_of_arrays else f"={short(value)}"
        given = f"a {kind}{content}, {argument.name}{shown}"
        cure = (
            "put what makes it, and the call, into the forward of a link of its own, or"
            " give its arrays one by one, or joined by F.concat or F.stack"
        )
    elif argument.name in ("train", "test") and isinstance(value, (bool, np.bool_)):
        given = f"{argument.name}={value}"
        cure = (
            "leave it out, and read chainer.config.train in its place, which a pipeline"
            " sets for training and evaluation"
        )
    elif argument.is_default:
        given = f"{argument.name}={short(value)}, its default, before an input"
        cure = (
            "give it by name to a forward that has the input before it, or put the call"
            " into the forward of a link of its own"
        )
    else:
        given = f"{argument.name}={short(value)}"
        cure = (
            f"make it the default of {argument.name}, or an attribute of the link, or"
            f" put the call into the forward of a link of its own"
        )
    return ChainError(
        f"{name} is called with {given}, and a layer gets arrays and variables by"
        f" position only: {cure}"
    )
