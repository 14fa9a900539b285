"""Arrays of variables that a forward reads, in the code of a user.

::

    h = self.conv(x)
    mask = h.array > 0          array(h), greater(input[0], 0)
    return h * mask

The array of a variable has no gradient. What Chainer itself reads is not recorded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from chainer import Variable

from divisible.chains.places import is_users

#: Attributes of variables that are their array.
_NAMES = ("array", "data")


@contextmanager
def reported_arrays(
    read: Callable[[Variable, Any], Any], write: Callable[[Variable], None]
) -> Iterator[None]:
    """Reports arrays of variables that a user's code reads and sets, in this thread.

    Args:
        read: Function of the variable and its array; the code gets its result.
        write: Function of a variable that gets another array.
    """
    before = {name: vars(Variable)[name] for name in _NAMES}
    try:
        for name, each in before.items():
            setattr(
                Variable, name, _reporting(each, read, write, threading.get_ident())
            )
        yield
    finally:
        for name, each in before.items():
            setattr(Variable, name, each)


def _reporting(
    before: property,
    read: Callable[[Variable, Any], Any],
    write: Callable[[Variable], None],
    thread: int,
) -> property:
    def get(self: Variable) -> Any:
        array = before.fget(self)
        if threading.get_ident() != thread or not is_users(sys._getframe(1)):
            return array
        return read(self, array)

    def set_array(self: Variable, array: Any) -> None:
        if threading.get_ident() == thread and is_users(sys._getframe(1)):
            write(self)
        before.fset(self, array)

    return property(get, set_array, before.fdel, before.__doc__)
