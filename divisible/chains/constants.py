"""Arrays that a forward makes of sizes: zeros, positions, masks.

Such an array has no input. It is recorded in minibatches of several sizes. It becomes a
layer if it is the same in all of them, or follows the shape of another value::

    zeros((len(x), 8))       the same number along an axis that follows the samples
    arange(x.shape[1])       the start of what the longest example has
    tril(ones((n, n)))       likewise, in two axes
    random.rand(len(x))      refused: other numbers in each minibatch
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import chainer
import numpy as np

from divisible.chains.arguments import following_axis
from divisible.chains.calls import INPUT, Constant, Recording, Shape, Value
from divisible.chains.resolving import unknown


class ConstantLayer:
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
    recording: Recording, number: int, layer: ConstantLayer, anchor: Value
) -> Recording:
    calls = list(recording.calls)
    calls[number] = calls[number]._replace(callee=layer, inputs=(anchor,))
    return recording._replace(calls=tuple(calls))


def _settle(
    recordings: Sequence[Recording], number: int
) -> tuple[ConstantLayer, Value]:
    """Returns the layer of a constant, and the value whose shape it follows."""
    first = recordings[0]
    constants = [each.calls[number].callee for each in recordings]
    send = chainer.get_device("@numpy").send
    # A layer keeps no array that records operations.
    arrays = [np.asarray(send(each.array)) for each in constants]
    for anchor in _anchors(first, number):
        rule = _rule(arrays, [each.shape(anchor) for each in recordings])
        if rule is not None:
            return ConstantLayer(*rule, constants[0].is_variable), anchor
    who, place = "forward returns", None
    for call in first.calls[number + 1 :]:
        if Value(number, 0) in call.inputs:
            who, place = f"{call.title} reads", call.place
            break
    raise unknown(who, arrays[0], place)


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
