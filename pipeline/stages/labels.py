"""Class labels: what a loss leaves out, and which ones cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

import chainer
import numpy as np


def check_labels(parts: Sequence[np.ndarray]) -> None:
    """Refuses targets that ``F.softmax_cross_entropy`` does not take, or not so."""
    for targets in parts:
        # Of each class in a row, instead of the label.
        are_probabilities = targets.dtype.kind == "f" and targets.ndim > 1
        if targets.dtype.kind != "i" and not are_probabilities:
            raise TypeError(
                f"t is of dtype {targets.dtype}, but class labels must be signed"
                f" integers: convert it with t.astype('int32')"
            )


def _unwrapped(function: Callable) -> tuple[Callable, Mapping[str, Any]]:
    """Returns a function and the keyword arguments that a partial gives it."""
    return getattr(function, "func", function), getattr(function, "keywords", {})


def label_left_out(function: Callable) -> int | None:
    """Returns the label whose samples a function leaves out of its mean, if any."""
    function, options = _unwrapped(function)
    if function is chainer.functions.accuracy:
        return options.get("ignore_label")
    # Otherwise it divides by the number of all samples.
    normalizes = options.get("normalize", True)
    if function is chainer.functions.softmax_cross_entropy and normalizes:
        return options.get("ignore_label", -1)
    return None
