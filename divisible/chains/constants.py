"""Arrays that a forward makes of sizes: zeros, positions, masks.

Such an array has no input. It is recorded in minibatches of several sizes. It becomes a
layer if it is the same in all of them, or follows the shape of another value::

    zeros((len(x), 8))       the same number along an axis that follows the samples
    arange(x.shape[1])       the start of what the longest example has
    tril(ones((n, n)))       likewise, in two axes
    h[arange(len(x)), n]     positions of samples, to choose one element of each
    random.rand(len(x))      refused: other numbers in each minibatch
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import chainer
import numpy as np
from chainer.functions.array.get_item import GetItem

from divisible.chains.arguments import following_axis
from divisible.chains.array_operations import ArrayOperation
from divisible.chains.calls import INPUT, Constant, Recording, Shape, Value
from divisible.chains.resolving import unknown
from divisible.chains.slots import Slot


class SizedArray:
    """A layer that returns an array which depends on nothing but its input's size."""


class ConstantLayer(SizedArray):
    """A layer that returns a constant array, of the size that its input needs.

    Args:
        array (array): The array. An axis that follows the input has one element if all
            are the same, and otherwise as many as the longest example.
        follows (dict): Axis of the input by axis of the array.
        is_variable (bool): Whether the constant is returned as a variable.

    Example:
        >>> layer = ConstantLayer(np.zeros((1, 2), np.float32), {0: 0})
        >>> layer(np.ones((3, 5))).tolist()
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self, array: Any, follows: dict[int, int], is_variable: bool = False
    ) -> None:
        self._array = array
        self._follows = follows
        self._is_variable = is_variable

    def __call__(self, x: Any) -> Any:
        """Returns the constant on the device of ``x``.

        Raises:
            ValueError: If ``x`` is longer than the longest example.
        """
        device = chainer.backend.get_device_from_array(chainer.as_array(x))
        array = self._array
        shape, parts = list(array.shape), [slice(None)] * array.ndim
        for axis, source in self._follows.items():
            n, known = x.shape[source], array.shape[axis]
            if 1 < known < n:
                raise ValueError(
                    f"the constant of shape {array.shape} is known for {known} along"
                    f" axis {axis}, and this minibatch needs {n}: call from_chain with"
                    f" an example of at least that length"
                )
            shape[axis], parts[axis] = n, slice(n)
        if self._follows:
            array = np.broadcast_to(array[tuple(parts)], shape).copy()
        array = device.send(array)
        return (
            chainer.Variable(array, requires_grad=False)
            if self._is_variable
            else (array)
        )

    def __repr__(self) -> str:
        array = self._array
        number = zlib.crc32(np.ascontiguousarray(array).tobytes())
        follows = f", follows={self._follows}" if self._follows else ""
        return f"Constant({array.dtype}, {array.shape}, {number:08x}{follows})"


class SamplePositions(SizedArray):
    """A layer that returns the positions of the samples of a minibatch.

    Args:
        dtype: Type of the integers.

    Example:
        >>> SamplePositions(np.dtype("int32"))(np.zeros((3, 2))).tolist()
        [0, 1, 2]
    """

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype

    def __call__(self, x: Any) -> Any:
        """Returns 0, 1, 2 and so on, on the device of ``x``."""
        device = chainer.backend.get_device_from_array(chainer.as_array(x))
        return device.send(np.arange(len(x), dtype=self._dtype))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._dtype})"


def settled(recordings: Sequence[Recording]) -> list[Recording]:
    """Returns the recordings with a layer in place of each constant.

    Args:
        recordings: Equal calls in several minibatches: the first one, one with another
            number of samples, and those of other sizes.

    Raises:
        ChainError: If an array is no constant.
    """
    found = list(recordings)
    for number, call in enumerate(recordings[0].calls):
        if isinstance(call.callee, Constant):
            layer, anchor = _settle(recordings, number)
            found = [_replaced(each, number, layer, anchor) for each in found]
    return found


def _replaced(
    recording: Recording, number: int, layer: Callable[[Any], Any], anchor: Value
) -> Recording:
    calls = list(recording.calls)
    calls[number] = calls[number]._replace(callee=layer, inputs=(anchor,))
    return recording._replace(calls=tuple(calls))


def _settle(
    recordings: Sequence[Recording], number: int
) -> tuple[Callable[[Any], Any], Value]:
    """Returns the layer of a constant, and the value whose shape it follows."""
    first = recordings[0]
    constants = [each.calls[number].callee for each in recordings]
    send = chainer.get_device("@numpy").send
    # A layer keeps no array that records operations.
    arrays = [np.asarray(send(each.array)) for each in constants]
    chooses = _chooses_of_samples(first, number)
    for anchor in _anchors(first, number):
        shapes = [each.shape(anchor) for each in recordings]
        if chooses and all(map(_are_positions, arrays, shapes)):
            return SamplePositions(arrays[0].dtype), anchor
        rule = _rule(arrays, shapes)
        if rule is not None:
            return ConstantLayer(*rule, constants[0].is_variable), anchor
    who, place = "forward returns", None
    for call in first.calls[number + 1 :]:
        if Value(number, 0) in call.inputs:
            who, place = f"{call.title} reads", call.place
            break
    raise unknown(who, arrays[0], place)


def _chooses_of_samples(recording: Recording, number: int) -> bool:
    """Returns whether an array is only an index along the axis of samples."""
    value = Value(number, 0)
    users = [call for call in recording.calls if value in call.inputs]
    for call in users:
        if isinstance(call.callee, GetItem):
            key = call.callee.slices
        elif isinstance(call.callee, ArrayOperation) and call.callee.name == "getitem":
            key = call.callee.arguments["argument_1"]
        else:
            return False
        first = key[0] if isinstance(key, tuple) else key
        if not isinstance(first, Slot) or call.inputs[first.number] != value:
            return False
        if call.inputs.count(value) > 1:
            return False
    return bool(users) and value not in recording.outputs


def _are_positions(array: np.ndarray, shape: Shape) -> bool:
    is_whole = array.dtype.kind in "iu" and array.ndim == 1
    return is_whole and np.array_equal(array, np.arange(shape[0]))


def _anchors(recording: Recording, number: int) -> Iterable[Value]:
    """Returns values from which a constant may have its sizes, the nearest first."""
    inputs = [Value(INPUT, i) for i in range(recording.n_inputs)]
    for call in recording.calls[number + 1 :]:
        if Value(number, 0) in call.inputs:
            others = [
                value
                for value in call.inputs
                if value.call < number
                and (
                    value.call == INPUT
                    or not isinstance(recording.calls[value.call].callee, Constant)
                )
            ]
            return [*others, *inputs]
    return inputs


def _rule(
    arrays: Sequence[np.ndarray], shapes: Sequence[Shape]
) -> tuple[np.ndarray, dict[int, int]] | None:
    """Returns the array to keep, and the axes that follow; ``None`` without a rule."""
    first = arrays[0]
    if any(a.ndim != first.ndim or a.dtype != first.dtype for a in arrays):
        return None
    follows: dict[int, int] = {}
    for axis in range(first.ndim):
        numbers = [a.shape[axis] for a in arrays]
        if len(set(numbers)) > 1:
            size = following_axis(numbers, shapes)
            if size is None:
                return None
            follows[axis] = size
    if any(a.size == 0 for a in arrays):
        return None
    reduced = list(arrays)
    for axis in follows:
        if all((a == a.take([0], axis)).all() for a in arrays):
            reduced = [a.take([0], axis) for a in reduced]
        elif first.shape[axis] != arrays[1].shape[axis]:
            # Samples have no positions: a microbatch has any of them.
            return None
    kept = max(reduced, key=lambda a: a.size)
    for a in arrays:
        parts = [slice(None)] * a.ndim
        for axis in follows:
            if kept.shape[axis] > 1 and a.shape[axis] > kept.shape[axis]:
                return None
            parts[axis] = slice(a.shape[axis])
        part = kept[tuple(parts)]
        if not np.array_equal(np.broadcast_to(part, a.shape), a, equal_nan=_nan(a)):
            return None
    # A table of the chain may be changed in place later, and the layer follows it.
    return (kept.copy() if follows else first), follows


def _nan(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc"
