"""Links that define ``__call__``, as all code for Chainer 1 to 4 does.

Hooks of links are called by ``chainer.Link.__call__``, which such a class replaces.
While a chain is recorded, such classes report their calls as well::

    class Block(chainer.Chain):            class Gained(L.Linear):
        def __call__(self, x):                 def __call__(self, x):
            return F.relu(self.a(x))               return super().__call__(x) * 2

    one call: of Block                     two calls of one link, one in the other
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Protocol

import chainer


class Listener(Protocol):
    """Listens to calls of links."""

    def enter(self, link: chainer.Link, args: tuple, kwargs: dict) -> None:
        """Begins the call of a link."""

    def leave(self, link: chainer.Link, result: Any) -> None:
        """Ends the call of a link."""


@contextmanager
def reported_calls(chain: chainer.Link, listener: Listener) -> Iterator[None]:
    """Reports the calls of links with an own ``__call__``, of this thread.

    Args:
        chain (chainer.Link): The chain with the links.
        listener: Its methods are called at the start and the end of each call.
    """
    before = {cls: vars(cls)["__call__"] for cls in _classes(chain)}
    try:
        for cls, call in before.items():
            cls.__call__ = _reporting(call, listener, threading.get_ident())
        yield
    finally:
        for cls, call in before.items():
            cls.__call__ = call


def signature_of(link: chainer.Link) -> Callable[..., Any]:
    """Returns the function that has the signature of a link's call."""
    is_own = own_class(type(link)) is not None or not hasattr(link, "forward")
    return link.__call__ if is_own else link.forward


def own_class(cls: type) -> type | None:
    """Returns the class that defines the ``__call__`` of a link, if not Chainer's."""
    for each in cls.__mro__:
        if "__call__" in vars(each):
            return None if each is chainer.Link else each
    return None


def _classes(chain: chainer.Link) -> list[type]:
    """Returns the classes of all links that define ``__call__``, parents as well."""
    found: dict[type, None] = {}
    for link in chain.links():
        for cls in type(link).__mro__:
            if cls is chainer.Link:
                break
            if "__call__" in vars(cls):
                found[cls] = None
    return list(found)


def _reporting(call: Any, listener: Listener, thread: int) -> Callable[..., Any]:
    @functools.wraps(call)
    def reported(self: chainer.Link, *args: Any, **kwargs: Any) -> Any:
        bound = call.__get__(self, type(self))
        if threading.get_ident() != thread:
            return bound(*args, **kwargs)
        listener.enter(self, args, kwargs)
        result = bound(*args, **kwargs)
        listener.leave(self, result)
        return result

    return reported
