"""The arguments of functions, in minibatches of several sizes.

A function is recorded in each minibatch, with the shapes of its inputs. An argument
that differs is accepted if it is a size of one of the function's inputs, or of the
chain's::

    input (4, 6, 5)     input (4, 6, 8)     argument
    axis = 1            axis = 1            1
    shape = (4, 30)     shape = (4, 48)     (shape[0], -1)
    kh = 5              kh = 8              shape[2]
    value = 0.2         value = 0.125       refused: no size
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.functions.array.broadcast import BroadcastTo
from chainer.functions.array.reshape import Reshape

from divisible.chains.array_operations import ArrayOperation
from divisible.chains.calls import (
    INPUT,
    Call,
    Callee,
    ChainError,
    Recording,
    Shape,
    short,
)

#: Name of the argument that is the shape of the output, by function.
_SHAPES = {Reshape: "shape", BroadcastTo: "_shape"}


class Seen(NamedTuple):
    """A call of a function, as it was made in one minibatch.

    Attributes:
        call: The call.
        shapes: Shapes of the inputs.
        minibatch: Shapes of the chain's inputs, as text.
        place: The last link before the function, as text.
    """

    call: Call
    shapes: tuple[Shape, ...]
    minibatch: str
    place: str

    @classmethod
    def of(cls, recording: Recording, number: int) -> Seen:
        """Returns the call at a position of a recording, with its surroundings."""
        call = recording.calls[number]
        before = call.inputs[0].call
        while before != INPUT and not recording.calls[before].path:
            before = recording.calls[before].inputs[0].call
        place = "the input" if before == INPUT else recording.calls[before].title
        shapes = tuple(map(recording.shape, call.inputs))
        return cls(call, shapes, recording.minibatch, place)

    def with_input(self, shape: Shape) -> Seen:
        """Returns the call with one more input, which gives sizes only."""
        return self._replace(shapes=(*self.shapes, shape))

    def argument(self, name: str) -> Any:
        """Returns an argument. A shape with -1 is returned as the resulting shape."""
        if name == _shape_name(self.call.callee):
            return self.call.shapes[0]
        return vars(self.call.callee).get(name)


class Size(NamedTuple):
    """Replaces, in an argument, a size of one of the function's inputs.

    Attributes:
        axis: Axis of the input.
        number: Position of the input.
    """

    axis: int
    number: int = 0

    def __repr__(self) -> str:
        of = f"input[{self.number}]." if self.number else ""
        return f"{of}shape[{self.axis}]"


def arguments(function: Callee) -> dict[str, Any]:
    """Returns the arguments in which functions of one class differ."""
    if isinstance(function, ArrayOperation):
        return function.arguments
    return dict(sorted(vars(function).items()))


def followed(seen: Sequence[Seen]) -> dict[str, Any]:
    """Returns the arguments of a function that follow the size of its input.

    Args:
        seen: One call in several minibatches: the first one, one with another number of
            samples, and those of other sizes.

    Returns:
        dict: The arguments by name. A :class:`Size` is in each place that follows the
        input, and -1 where a reshape finds the number itself.

    Raises:
        ChainError: If an argument differs, and is not a size of an input.
    """
    names = {name for each in seen for name in arguments(each.call.callee)}
    found = {}
    for name in sorted(names):
        values = [each.argument(name) for each in seen]
        if all(_is_same(values[0], value) for value in values):
            continue
        _check_samples(name, seen)
        is_reshape = _is_reshape(seen[0].call.callee)
        found[name] = _follow(values, [each.shapes for each in seen], is_reshape)
        if found[name] is None:
            raise _refused(name, seen)
    return found


def fill(value: Any, inputs: Sequence[Any]) -> Any:
    """Returns an argument for given inputs.

    Args:
        value: An argument in the result of :func:`followed`.
        inputs: Arrays or variables.

    Example:
        >>> x = np.zeros((5, 6))
        >>> fill((Size(0), 2, -1), [x]), fill(Size(1), [x])
        ((5, 2, -1), 6)
    """
    if isinstance(value, Size):
        return inputs[value.number].shape[value.axis]
    return tuple(fill(n, inputs) if isinstance(n, Size) else n for n in value)


def _follow(
    values: Sequence[Any], shapes: Sequence[tuple[Shape, ...]], is_reshape: bool
) -> Any:
    """Replaces sizes of inputs in a number or tuple; ``None`` if there are none."""
    if all(map(_is_size, values)):
        return _size(values, shapes)
    if not all(isinstance(v, tuple) and all(map(_is_size, v)) for v in values):
        return None
    if len(set(map(len, values))) > 1:
        return None
    columns = [*zip(*values)]
    unlike = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    if is_reshape and len(unlike) == 1:
        return tuple(-1 if i in unlike else n for i, n in enumerate(values[0]))
    sizes = {i: _size(columns[i], shapes) for i in unlike}
    others = [i for i in unlike if sizes[i] is None]
    if others and not (is_reshape and len(others) == 1):
        return None
    sizes.update(dict.fromkeys(others, -1))
    return tuple(sizes.get(i, n) for i, n in enumerate(values[0]))


def following_axis(numbers: Sequence[int], shapes: Sequence[Shape]) -> int | None:
    """Returns the axis of an input with these sizes in the minibatches, if any."""
    n_axes = min(map(len, shapes))
    for axis in range(n_axes):
        if all(n == shape[axis] for n, shape in zip(numbers, shapes)):
            return axis
    return None


def _size(numbers: Sequence[int], shapes: Sequence[tuple[Shape, ...]]) -> Size | None:
    for number, each in enumerate(zip(*shapes)):
        axis = following_axis(numbers, each)
        if axis is not None:
            return Size(axis, number)
    return None


def _is_size(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _check_samples(name: str, seen: Sequence[Seen]) -> None:
    """Refuses an argument that depends on the number of samples, unless as one size."""
    first, other = seen[:2]
    mine, theirs = first.argument(name), other.argument(name)
    if _is_same(mine, theirs):
        return
    title = first.call.title
    if name != _shape_name(first.call.callee):
        raise ChainError(
            f"{title} is called with {name.lstrip('_')} = {short(mine)} for one"
            f" minibatch, and {short(theirs)} for another one, and a layer has one for"
            f" all: put the call into the forward of a link of its own",
            first.call.place,
        )
    if len(mine) != len(theirs) or sum(a != b for a, b in zip(mine, theirs)) > 1:
        raise ChainError(
            f"{title} makes the shape {mine} of one minibatch, and {theirs} of another"
            f" one: put the call into the forward of a link of its own",
            first.call.place,
        )


def _refused(name: str, seen: Sequence[Seen]) -> ChainError:
    first, samples, *sized = seen
    mine = first.argument(name)
    unlike = (s for s in sized if not _is_same(mine, s.argument(name)))
    other = next(unlike, samples)
    return ChainError(
        f"{first.call.title} behind {first.place} is called with"
        f" {name.lstrip('_')} = {short(mine)} for a minibatch of shape"
        f" {first.minibatch}, and {short(other.argument(name))} for one of shape"
        f" {other.minibatch}. It depends on the size of the input, and a layer has one"
        f" value for all sizes. Write a function that finds the size itself, such as"
        f" F.mean(h, axis=1) for F.sum(h, axis=1) / h.shape[1], or put what reads the"
        f" size, and the call, into the forward of a link of its own",
        first.call.place,
    )


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, chainer.get_array_types()):
        alike = type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype
        return alike and bool((a == b).all())
    if isinstance(a, (tuple, list)):
        alike = type(a) is type(b) and len(a) == len(b)
        return alike and all(map(_is_same, a, b))
    return type(a) is type(b) and bool(np.all(a == b))


def _shape_name(callee: Callee) -> str | None:
    """Returns the argument that is the shape of the output, if there is one."""
    if isinstance(callee, ArrayOperation):
        return "shape" if callee.makes_shape else None
    return _SHAPES.get(type(callee))


def _is_reshape(callee: Callee) -> bool:
    is_operation = isinstance(callee, ArrayOperation)
    return callee.name == "reshape" if is_operation else isinstance(callee, Reshape)
