"""Class labels: what a loss leaves out, and which ones cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

import chainer
import numpy as np


def highest_label(labels: np.ndarray, ignored: int) -> int:
    """Returns the highest label to learn; -1 if there is none.

    Args:
        labels: Targets of ``F.softmax_cross_entropy``.
        ignored: The label that it leaves out.

    Raises:
        TypeError: If it does not take them.
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
    # NumPy would take them from the end, and CuPy from anywhere.
    if learned.min() < 0:
        raise ValueError(
            f"t has the label {learned.min()}: labels start at 0, and only"
            f" {ignored} is ignored"
        )
    return int(learned.max())


def unwrap(function: Callable) -> tuple[Callable, Mapping[str, Any]]:
    """Returns a function and the keyword arguments that a partial gives it."""
    return getattr(function, "func", function), getattr(function, "keywords", {})


def label_left_out(function: Callable) -> int | None:
    """Returns the label whose samples a function leaves out of its mean, if any."""
    function, options = unwrap(function)
    if function is chainer.functions.accuracy:
        return options.get("ignore_label")
    # Otherwise it divides by the number of all samples.
    normalizes = options.get("normalize", True)
    if function is chainer.functions.softmax_cross_entropy and normalizes:
        return options.get("ignore_label", -1)
    return None
