"""Random numbers that a forward draws itself, which are refused.

::

    if np.random.rand() < 0.9:          the same way in all minibatches that are tried
        h = h + self.block(h)
    F.dropout(h), F.gaussian(m, v)      functions of Chainer draw in each call
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import numpy as np

from divisible.chains.places import is_users

_NUMPY = """
    beta binomial choice exponential gamma gumbel laplace normal permutation poisson
    rand randint randn random random_sample shuffle standard_normal uniform
"""
_PYTHON = "choice gauss randint random randrange sample shuffle uniform"


@contextmanager
def refused_draws(refuse: Callable[[], None]) -> Iterator[None]:
    """Refuses random numbers that the code of a user draws in this thread.

    Args:
        refuse: Function that is called before each draw; it may raise an error.
    """
    places = [(np.random, name) for name in _NUMPY.split()]
    places += [(random, name) for name in _PYTHON.split()]
    before = [(place, name, getattr(place, name)) for place, name in places]
    try:
        for place, name, function in before:
            setattr(place, name, _refusing(function, refuse, threading.get_ident()))
        yield
    finally:
        for place, name, function in before:
            setattr(place, name, function)


def _refusing(
    function: Callable[..., Any], refuse: Callable[[], None], thread: int
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and is_users(sys._getframe(1)):
            refuse()
        return function(*args, **kwargs)

    return call
