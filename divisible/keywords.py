"""Errors that name the right keyword in place of an unknown one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

#: Keywords for other words, which Chainer, PyTorch or older scripts have.
_INSTEAD = {
    "autoload": ("resume",),
    "checkpoint": ("recompute",),
    "checkpoints": ("recompute",),
    "chunks": ("n_microbatches",),
    "hold_directory": ("hold_in",),
    "loss_fn": ("lossfun",),
    "max_replicas": ("replicas",),
    "memory": ("machine",),
    "min_replicas": ("replicas",),
    "network": ("machine",),
    "ranks": ("machine",),
    "wire_dtype": ("message_dtype", "exchange_dtype"),
}


def names_keywords(function: Function) -> Function:
    """Makes a function name the right keyword when it is called with an unknown one.

    Example:
        >>> @names_keywords
        ... def train(stage, *, n_microbatches=1, recompute='never'):
        ...     return n_microbatches
        >>> train(None, n_microbatches=2)
        2
        >>> train(None, checkpoint='always')
        Traceback (most recent call last):
            ...
        TypeError: train() has no argument 'checkpoint': use recompute
        >>> train(None, 4)
        Traceback (most recent call last):
            ...
        TypeError: train() takes only stage by position: give the rest by keyword
    """
    name = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters
    by_position = [
        each.name
        for each in parameters.values()
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if len(args) > len(by_position):
            known = ", ".join(each for each in by_position if each != "self")
            raise TypeError(
                f"{name}() takes only {known} by position: give the rest by keyword"
            )
        for word in keywords:
            if word not in parameters:
                right = " or ".join(_right(word, [*parameters]))
                cure = f"use {right}" if right else f"see help({name})"
                raise TypeError(f"{name}() has no argument {word!r}: {cure}")
        return function(*args, **keywords)

    return call


def _right(word: str, known: Sequence[str]) -> list[str]:
    """Returns the keywords of a function that are meant by an unknown one."""
    meant = [each for each in _INSTEAD.get(word, ()) if each in known]
    return meant or difflib.get_close_matches(word, known, 1)
