"""Class labels: those that a loss leaves out, and those that it must refuse."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

import chainer
import numpy as np


def highest_label(labels: np.ndarray, ignored: int) -> int:
    """Returns the highest label to learn; -1 if there is none.

    Args:
        labels: Targets of ``F.softmax_cross_entropy``.
        ignored: Label whose samples the function leaves out.

    Raises:
        TypeError: If the labels are not signed integers.
        ValueError: If a label is negative.
    """
    if labels.dtype.kind == "f" and labels.ndim > 1:
        # Probabilities of each class in a row, instead of the label.
        return -1
    if labels.dtype.kind != "i":
        raise TypeError(
            f"t is of dtype {labels.dtype}, but class labels must be signed"
            f" integers: convert it with t.astype('int32')"
        )
    learned = labels[labels != ignored]
    if learned.size == 0:
        return -1
    # NumPy would count negative labels from the end; CuPy would read anywhere.
    if learned.min() < 0:
        raise ValueError(
            f"t has the label {learned.min()}: labels start at 0, and only"
            f" {ignored} is ignored"
        )
    return int(learned.max())


def takes_outputs_alone(function: Callable) -> bool:
    """Returns whether a loss can be called without targets.

    True if it needs one argument at most, such as ``lambda y: ...`` and ``lambda
    *outputs: ...``.

    Example:
        >>> takes_outputs_alone(lambda y: y), takes_outputs_alone(lambda y, t: y)
        (True, False)
    """
    # A link may define __call__ instead of forward.
    is_link = isinstance(function, chainer.Link)
    called = getattr(function, "forward", function) if is_link else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        # A function in C need not have a signature.
        return False
    needed = [
        each
        for each in parameters
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) <= 1


def check_labels(microbatch: int, y: Any, t: Any, highest: int, ignored: int) -> None:
    """Refuses targets of a microbatch that do not fit the model's outputs.

    Args:
        microbatch (int): Position of the microbatch in the minibatch.
        y: Scores of the shape ``(samples, classes, ...)``.
        t: Targets of ``F.softmax_cross_entropy``.
        highest (int): The highest label to learn.
        ignored (int): Label whose samples are left out.

    Raises:
        ValueError: If the number of samples, the shape or a label does not fit.
    """
    if len(y) != len(t):
        raise ValueError(
            f"microbatch {microbatch} has {len(y)} samples but {len(t)} targets: x and"
            f" t must be of the same minibatch"
        )
    _check_shape(microbatch, y.shape, t)
    # The outputs of this microbatch count: some models vary the number of classes.
    if highest >= y.shape[1]:
        raise ValueError(
            f"microbatch {microbatch} has the label {highest}, but the model has"
            f" {y.shape[1]} outputs: labels go from 0 to {y.shape[1] - 1}, and"
            f" {ignored} is ignored"
        )


def _check_shape(microbatch: int, shape: Sequence[int], t: Any) -> None:
    if len(shape) < 2:
        raise ValueError(
            f"the last layer returned the shape {tuple(shape)} for microbatch"
            f" {microbatch}, but softmax_cross_entropy takes scores of the shape"
            f" (samples, classes, ...)"
        )
    if t.dtype.kind == "f":
        if t.shape != shape:
            raise ValueError(
                f"microbatch {microbatch} has probabilities of the shape {t.shape} as"
                f" targets, but the last layer returned {tuple(shape)}: they must have"
                f" that shape"
            )
        return
    expected = (shape[0], *shape[2:])
    if t.shape == expected:
        return
    cure = ""
    if t.size == np.prod(expected):
        # With len(t), the cure holds for any number of samples.
        cure = f": use t.reshape({', '.join(map(str, ('len(t)', *expected[1:])))})"
    elif t.shape == shape:
        cure = ": if they are one-hot, use t.argmax(axis=1)"
    raise ValueError(
        f"microbatch {microbatch} has targets of the shape {t.shape}, but the last"
        f" layer returned the shape {tuple(shape)}, with which softmax_cross_entropy"
        f" takes labels of the shape {expected}{cure}"
    )


def unwrap(function: Callable) -> tuple[Callable, Mapping[str, Any]]:
    """Returns the function in a ``functools.partial``, and its keyword arguments."""
    if isinstance(function, partial):
        return function.func, function.keywords
    # A loss of the user's own may have an attribute ``func``, too.
    return function, {}


def label_left_out(function: Callable) -> int | None:
    """Returns the label whose samples a function leaves out of its mean, if any."""
    function, options = unwrap(function)
    if function is chainer.functions.accuracy:
        return options.get("ignore_label")
    if function is chainer.functions.binary_accuracy:
        return -1
    # Without normalize, the functions divide by the number of all samples.
    if not options.get("normalize", True):
        return None
    if function is chainer.functions.sigmoid_cross_entropy:
        return -1
    if function is chainer.functions.softmax_cross_entropy:
        return options.get("ignore_label", -1)
    return None


def is_understood(function: Callable) -> bool:
    """Returns whether the targets alone determine what a function's mean is over."""
    functions = chainer.functions
    return unwrap(function)[0] in (
        functions.accuracy,
        functions.binary_accuracy,
        functions.mean_absolute_error,
        functions.mean_squared_error,
        functions.sigmoid_cross_entropy,
        functions.softmax_cross_entropy,
    )
