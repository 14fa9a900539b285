"""Reports which gradients are complete during the last backward of a minibatch.

::

    loss --- F3 --- F2 --- F1          two parts of W are expected, from F3 and F1
              |             |
              W ----------- W
    backward of F3, F2, F1
                        ^ F1 has added the last part: the gradient of W is complete
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable

import chainer


class Completion:
    """The parts that functions still have to add to gradients of parameters.

    A parameter is not reported if it gets fewer parts than expected, because no
    gradient reaches a function.

    Args:
        complete: Called with each parameter whose last expected part has been added.

    Example:
        >>> told = []
        >>> completion = Completion(lambda param: told.append(param.name))
        >>> W, b = chainer.Parameter(name='W'), chainer.Parameter(name='b')
        >>> completion.expect([W, b, W])
        >>> for param in (W, b, W):
        ...     completion.add(param)
        >>> told
        ['b', 'W']
    """

    def __init__(self, complete: Callable[[chainer.Parameter], None]) -> None:
        self._complete = complete
        self._missing: dict[int, int] = {}
        self._left_out: set[int] = set()

    def leave_out(self, parameters: Iterable[chainer.Parameter]) -> None:
        """Sets the parameters that are not reported, as other graphs will add to them.

        Args:
            parameters: The parameters. They replace those of the last call.
        """
        self._left_out = {id(param) for param in parameters}

    def expect(self, parameters: Iterable[chainer.Parameter]) -> None:
        """Counts the parts that a graph will add.

        Args:
            parameters: A parameter for each part; some occur several times.
        """
        for param in parameters:
            self._missing[id(param)] = self._missing.get(id(param), 0) + 1

    def is_next(self, parameter: chainer.Parameter) -> bool:
        """Returns whether the next part completes a gradient."""
        key = id(parameter)
        return self._missing.get(key) == 1 and key not in self._left_out

    def add(self, parameter: chainer.Parameter) -> None:
        """Records that a part has been added."""
        key = id(parameter)
        self._missing[key] = self._missing.get(key, 0) - 1
        if not self._missing[key] and key not in self._left_out:
            self._complete(parameter)
