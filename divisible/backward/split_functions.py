"""Functions of users whose backward runs in two halves.

A zero-bubble schedule computes the gradients of activations (I) first, and those of
weights (W) later. Many functions of Chainer compute the gradients that they are asked
for. One that computes all of them at once would do so twice, so it runs whole in I, and
its W does nothing. :func:`register_split` gives such a function two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chainer
import numpy as np

from chainer_kernels.catalogue import Backward, backward_of
from divisible.backward.graph_functions import parameter_of

#: ``half(function, indexes, grad_outputs)`` returns a gradient for each index.
Half = Callable[[Any, Sequence[int], Sequence[Any]], Sequence[Any]]
# A half may add up in another order than the whole.
_ADDITIONS = 2**12


def register_split(
    function: type[chainer.FunctionNode], backward_input: Half, backward_weight: Half
) -> None:
    """Gives the backward of a function two halves, as zero-bubble schedules need it.

    The first backward that needs one half also runs the whole backward, and compares
    it with both halves. A backward that needs both runs the whole one.

    Args:
        function (type): Class of a :class:`chainer.FunctionNode` with a ``backward``.
            Its subclasses run whole, unless they are registered themselves.
        backward_input: ``backward_input(function, indexes, grad_outputs)`` computes the
            gradients of activations. Arguments and result are those of ``backward``,
            with the instance first.
        backward_weight: Function like ``backward_input`` for inputs that are parameters
            or are computed from parameters alone: the weights.

    Raises:
        TypeError: If ``function`` is not such a class, or a half not a function.
        ValueError: If the function's backward runs in halves already.

    Example:
        >>> import chainer.functions as F
        >>> from divisible import register_split
        >>> class Scale(chainer.FunctionNode):
        ...     def forward(self, inputs):
        ...         self.retain_inputs((0, 1))
        ...         return (inputs[0] * inputs[1],)
        ...
        ...     def backward(self, indexes, grad_outputs):
        ...         x, w = self.get_retained_inputs()
        ...         (gy,) = grad_outputs
        ...         both = gy * F.broadcast_to(w, gy.shape), F.sum(gy * x, axis=0)
        ...         return tuple(both[i] for i in indexes)
        >>> def of_input(scale, indexes, grad_outputs):
        ...     w = scale.get_retained_inputs()[1]
        ...     return (grad_outputs[0] * F.broadcast_to(w, grad_outputs[0].shape),)
        >>> def of_weight(scale, indexes, grad_outputs):
        ...     x = scale.get_retained_inputs()[0]
        ...     return (F.sum(grad_outputs[0] * x, axis=0),)
        >>> register_split(Scale, of_input, of_weight)

    See Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.
    """
    if not (isinstance(function, type) and issubclass(function, chainer.FunctionNode)):
        raise TypeError(
            f"register_split: {function!r} is not a subclass of chainer.FunctionNode;"
            f" write the function as one"
        )
    for name, half in (("input", backward_input), ("weight", backward_weight)):
        if not callable(half):
            raise TypeError(
                f"register_split({function.__name__}): backward_{name} must be a"
                f" function, not {half!r}"
            )
    if backward_of(function).is_splittable:
        raise ValueError(
            f"register_split({function.__name__}): its backward runs in halves already;"
            f" register a function once, and none of Chainer's"
        )
    whole = function.backward
    unchecked = {"backward_input", "backward_weight"}

    def backward(self: Any, indexes: Sequence[int], grad_outputs: Sequence[Any]) -> Any:
        weights = [i for i in indexes if _is_weight(self.inputs[i])]
        if weights and len(weights) < len(indexes):
            return whole(self, indexes, grad_outputs)
        name = "backward_weight" if weights else "backward_input"
        half = backward_weight if weights else backward_input
        found = half(self, indexes, grad_outputs)
        if name in unchecked or chainer.is_debug():
            expected = whole(self, indexes, grad_outputs)
            _compare(f"{name} of {function.__name__}", indexes, found, expected)
            unchecked.discard(name)
        return found

    function.backward = backward
    function.taken_apart = Backward(True)
    backward_of.cache_clear()


def _is_weight(x: Any) -> bool:
    """Returns whether a node is a parameter, or is computed from parameters alone."""
    waiting = [x]
    while waiting:
        node = waiting.pop()
        if node.creator_node is not None:
            waiting += node.creator_node.inputs
        elif parameter_of(node) is None:
            return False
    return True


def _compare(
    what: str, indexes: Sequence[int], found: Any, expected: Sequence[Any]
) -> None:
    """Refuses a half whose gradients are not those of the whole backward."""
    if not isinstance(found, tuple) or len(found) != len(indexes):
        raise TypeError(
            f"{what} must return a tuple with a gradient for each of the inputs"
            f" {tuple(indexes)}, as backward does, not {found!r}"
        )
    for i, one, other in zip(indexes, found, expected):
        if one is None or other is None:
            if one is not other:
                raise ValueError(
                    f"{what} returns {'no' if one is None else 'a'} gradient of input"
                    f" {i}, unlike the whole backward: return the same in both"
                )
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ValueError(
                f"{what} returns a gradient of input {i} of shape {one.shape} and dtype"
                f" {one.dtype}, but the whole backward one of {other.shape} and"
                f" {other.dtype}: return the same in both"
            )
        xp = chainer.backend.get_array_module(other.array)
        largest = float(abs(other.array).max(initial=0))
        difference = float(abs(one.array - other.array).max(initial=0))
        if xp.isfinite(largest) and not difference <= (
            _ADDITIONS * np.finfo(other.dtype).eps * largest
        ):
            raise ValueError(
                f"{what} returns a gradient of input {i} that differs by"
                f" {difference:.3g} from that of the whole backward, whose largest"
                f" number is {largest:.3g}: correct one of the two"
            )
