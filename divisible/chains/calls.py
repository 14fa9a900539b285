"""The calls that the forward of a chain makes, and the values between them.

::

    def forward(self, x):                 call   callee     inputs
        h = F.relu(self.conv1(x))         0      /conv1     x
        g = self.conv2(h)                 1      ReLU       output of 0
        return h + g                      2      /conv2     output of 1
                                          3      Add        outputs of 1 and 2

Calls within the call of a link belong to the link.
"""

from __future__ import annotations

import reprlib
from typing import Any, Callable, NamedTuple, Union

import chainer
from chainer import FunctionNode, Link

from divisible.chains.array_operations import ArrayOperation
from divisible.chains.places import Place

#: Position that stands for the inputs of the chain.
INPUT = -1

Shape = tuple[int, ...]


class ChainError(ValueError):
    """A chain that cannot be a line of layers. The message has the reason.

    Args:
        reason (str): Cause and cure.
        place (Place or None): Line of the user's code.
    """

    def __init__(self, reason: str, place: Place | None = None) -> None:
        super().__init__(reason if place is None else f"{reason}\n    {place}")


class ForwardError(ChainError):
    """A forward that raised an error."""


class Constant(NamedTuple):
    """An array that depends on no input, as far as one forward can show.

    Attributes:
        array: The array.
        is_variable (bool): Whether it was given as a variable.
    """

    array: Any
    is_variable: bool


#: A link, a copy of a function as it was before the call, or what makes arrays.
Callee = Union[
    Link, FunctionNode, chainer.Function, ArrayOperation, Constant, Callable[..., Any]
]


class Value(NamedTuple):
    """One of the outputs of a call.

    Attributes:
        call: The position of the call, or :data:`INPUT`.
        output: Position of the output among those of the call.
    """

    call: int
    output: int


class Call(NamedTuple):
    """A call of a link, or of a function between two links.

    Attributes:
        callee: The link or the function that is called.
        path: Path of the link in the chain, such as ``/conv2``; empty for a function.
        inputs: The inputs of the call.
        shapes: Shapes of the outputs; ``None`` for an output that was not used.
        place: Line of the user's code that made the call.
        n_anchors: Number of the last inputs, which give sizes only.
    """

    callee: Callee
    path: str
    inputs: tuple[Value, ...]
    shapes: tuple[Shape | None, ...]
    place: Place | None = None
    n_anchors: int = 0

    @property
    def title(self) -> str:
        """The name of the link or function in messages."""
        return title(self.callee, self.path)

    def is_like(self, other: Call) -> bool:
        """Returns whether another call has the same callee and the same inputs."""
        mine, theirs = self.callee, other.callee
        alike = type(mine) is type(theirs)
        if isinstance(mine, ArrayOperation):
            alike = mine.is_like(theirs)
        return alike and (self.path, self.inputs) == (other.path, other.inputs)


class Recording(NamedTuple):
    """The calls that one forward of a chain made.

    Attributes:
        calls: The calls on which the output depends, in order.
        outputs: The outputs of the forward.
        shapes: Shapes of the chain's inputs.
        unused: Calls of links on which the output does not depend.
    """

    calls: tuple[Call, ...]
    outputs: tuple[Value, ...]
    shapes: tuple[Shape, ...]
    unused: tuple[Call, ...] = ()

    @property
    def n_inputs(self) -> int:
        """Number of the chain's inputs."""
        return len(self.shapes)

    @property
    def minibatch(self) -> str:
        """Shapes of the chain's inputs, as text."""
        return " and ".join(map(str, self.shapes))

    def shape(self, value: Value) -> Shape:
        """Returns the shape of a value."""
        shapes = self.shapes if value.call == INPUT else self.calls[value.call].shapes
        return shapes[value.output]


def title(callee: Callee, path: str) -> str:
    """Returns the name of a link or a function in messages."""
    name = type(callee).__name__
    if isinstance(callee, ArrayOperation):
        return f"the operation {callee.name} of NumPy"
    if isinstance(callee, Constant):
        return "a constant"
    return f"{path} ({name})" if path else f"the function {name}"


def short(value: Any) -> str:
    """Returns a value as text of one line at most.

    Example:
        >>> import numpy as np
        >>> short(np.zeros((2, 3), np.float32)), len(short("a" * 200))
        ('a float32 array of shape (2, 3)', 60)
    """
    if isinstance(value, (chainer.Variable, *chainer.get_array_types())):
        return f"a {value.dtype} array of shape {value.shape}"
    text = " ".join(_shortened.repr(value).split())
    return text if len(text) <= 60 else f"{text[:56]} ..."


_shortened = reprlib.Repr()
_shortened.maxother = _shortened.maxstring = 60


def link_paths(chain: chainer.Link) -> dict[int, str]:
    """Returns the first path of each link below a chain, by its ``id``."""
    paths: dict[int, str] = {}
    for path, link in chain.namedlinks(skipself=True):
        paths.setdefault(id(link), path)
    return paths
