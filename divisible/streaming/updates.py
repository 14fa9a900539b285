"""Chainer's update rules, applied to the segments of a parameter one by one.

An elementwise rule has the same result for all rows at once as for some rows after the
others::

    segment   param.array   param.grad   rule.state                  rule.t
    0         W[0:4]        gW[0:4]      {m: m[0:4], v: v[0:4]}      t -> t + 1
    1         W[4:8]        gW[4:8]      {m: m[4:8], v: v[4:8]}      t -> t + 1
    after     W             gW           {m: m, v: v}                t + 1

Hooks of the rule, such as an added weight decay, also get the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import chainer
import numpy as np
from chainer.optimizer_hooks import GradientLARS
from chainer.optimizers.sgd import SGDRule

from divisible.optimizer_hooks import named_hooks


class Segmented(Protocol):
    """A parameter that is updated by segments."""

    array: np.ndarray
    grad: np.ndarray

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yields the first row of each segment, and the one behind the last."""

    def new_state(self, dtypes: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns arrays full of zeros for an optimizer's state, by name."""

    def is_file(self, name: str, array: Any) -> bool:
        """Returns whether an array is the one of the named file."""

    def note_failed_update(self) -> None:
        """Forbids any further use, because only some rows may have been updated."""


def states_of(rule: chainer.UpdateRule, param: Segmented) -> dict[str, np.ndarray]:
    """Returns the arrays in a rule's state, by name, all of them in files.

    Args:
        rule: A rule, which may have updated the parameter before.
        param: The parameter.

    Raises:
        TypeError: If the rule, or a hook of it, is not elementwise.
    """
    if not rule.is_elementwise:
        raise TypeError(
            f"{type(rule).__name__} looks at more than one element at a time, and"
            f" cannot update a streamed parameter segment by segment"
        )
    for _, hook in named_hooks(rule):
        is_of_parts = getattr(hook, "is_elementwise", True)
        if not is_of_parts or isinstance(hook, GradientLARS):
            raise TypeError(
                f"the update rule's hook {type(hook).__name__} looks at more than one"
                f" element at a time, and a streamed parameter is updated segment by"
                f" segment: add it to the optimizer, which gives it the whole gradient"
            )
    if rule.state is None:
        return _begin(rule, param)
    found = {
        name: value
        for name, value in rule.state.items()
        if isinstance(value, np.ndarray) and value.shape == param.array.shape
    }
    if all(param.is_file(name, value) for name, value in found.items()):
        return found
    # The state is in memory, for example because Chainer loaded it.
    states = param.new_state({name: value.dtype for name, value in found.items()})
    for name, state in states.items():
        for start, stop in param.segments():
            state[start:stop] = found[name][start:stop]
    rule._state.update(states)
    return states


def _begin(rule: chainer.UpdateRule, param: Segmented) -> dict[str, np.ndarray]:
    """Makes the state of a rule that has none."""
    first = next(iter(param.segments()))
    start, stop = first
    begun = _state_of(rule, param.array[start:stop])
    found = {
        name: value
        for name, value in begun.items()
        if isinstance(value, np.ndarray)
        and value.shape == param.array[start:stop].shape
    }
    states = param.new_state({name: value.dtype for name, value in found.items()})
    if any(value.any() for value in found.values()):
        for start, stop in param.segments():
            begun = _state_of(rule, param.array[start:stop])
            for name, state in states.items():
                state[start:stop] = begun[name]
    rule._state = {**begun, **states}
    return states


def _state_of(rule: chainer.UpdateRule, array: np.ndarray) -> dict[str, Any]:
    rule._state = {}
    try:
        rule.init_state(chainer.Parameter(array))
        return rule._state
    finally:
        rule._state = None


def leaves_others(rule: chainer.UpdateRule) -> bool:
    """Returns whether a rule leaves all elements without a gradient unchanged.

    Example:
        >>> import chainer.links as L
        >>> from chainer import optimizers
        >>> for optimizer in optimizers.SGD(), optimizers.MomentumSGD():
        ...     link = L.Linear(1, 1)
        ...     _ = optimizer.setup(link)
        ...     print(leaves_others(link.W.update_rule))
        True
        False
    """
    return type(rule) is SGDRule and not named_hooks(rule)


def may_write_gradients(rule: chainer.UpdateRule) -> bool:
    """Returns whether an update may change gradients that are zero."""
    is_of_chainer = type(rule).__module__.startswith("chainer.")
    return not is_of_chainer or bool(named_hooks(rule))


def update(
    rule: chainer.UpdateRule,
    param: Segmented,
    states: Mapping[str, np.ndarray],
    segments: Iterable[tuple[int, int] | np.ndarray],
    gradient_of: Callable[[Any], np.ndarray],
    loss_scale: float | None,
) -> None:
    """Updates a parameter with its gradient.

    Args:
        rule: The rule, enabled.
        param: The parameter.
        states: The result of :func:`states_of`.
        segments: For each segment the first row and the one behind the last, or its
            rows.
        gradient_of: Function that returns the gradient of rows. They are a slice, or
            an array of numbers.
        loss_scale (float or None): The number by which Chainer's rules divide these
            gradients; ``None`` for gradients that are not scaled.
    """
    # Numbers that the rule counts, such as t, must be counted once.
    counted = {
        name: value
        for name, value in vars(rule).items()
        if isinstance(value, (int, float, np.generic))
    }
    state = rule._state
    try:
        for rows in segments:
            vars(rule).update(counted)
            where = slice(*rows) if isinstance(rows, tuple) else rows
            segment = _segment(param, where, gradient_of(where), loss_scale)
            parts = {name: value[where] for name, value in states.items()}
            rule._state = {**state, **parts}
            rule.update(segment)
            for name, value in rule._state.items():
                if name in parts:
                    _put(states[name], where, value, parts[name])
                else:
                    state[name] = value
            if where is rows:
                param.array[rows] = segment.array
    except BaseException:
        param.note_failed_update()
        raise
    finally:
        rule._state = state


def _put(array: np.ndarray, where: Any, value: np.ndarray, part: np.ndarray) -> None:
    """Puts a value in its place, unless it is a view of that place."""
    if value is not part or not isinstance(where, slice):
        array[where] = value


def _segment(
    param: Any,
    where: slice | np.ndarray,
    gradient: np.ndarray,
    loss_scale: float | None,
) -> chainer.Parameter:
    segment = chainer.Parameter(param.array[where])
    segment.name = param.name
    segment.grad = gradient
    segment._loss_scale = loss_scale
    return segment
