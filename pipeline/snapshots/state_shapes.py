"""Shapes of what is saved beside parameters, which must be those of the parameters.

What was changed in part, by whatever wrote the snapshot, is refused before it trains::

    optimizer/0/W/m    (10, 4)    the first moment of Adam
    model/0/W          (5, 4)     its parameter
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import chainer
import numpy as np
from chainer import Link

from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.serializers import is_none

# Sides of a parameter that an update rule is tried with; no rule has arrays of these.
_SIDES = (3, 5, 7, 11, 13)
# Running averages of batch normalization, of the shape of its parameters.
_AVERAGES = {"avg_mean", "avg_var"}


def note_rule(param: chainer.Parameter, arrays: Arrays, name: str) -> None:
    """Notes in the ledger what was loaded into an update rule in another shape.

    Args:
        param: With an update rule, whose state has been loaded.
        arrays: The arrays that it was loaded from.
        name: The beginning of their keys.
    """
    state = param.update_rule.state
    # A layer that is sized by the load itself is looked at once it is.
    if not state or param.array is None:
        return
    for key in _of_elements(param.update_rule, param.ndim):
        shape = getattr(state.get(key), "shape", param.shape)
        if shape != param.shape:
            arrays.ledger.unlike.append(
                f"the optimizer's {name}/{key} was saved with shape {shape}, but its"
                f" parameter {name} is {param.shape} here"
            )


def _of_elements(rule: Any, n_dims: int) -> Iterator[str]:
    """Yields what an update rule keeps of each element of a parameter."""
    shape = (_SIDES * (n_dims // len(_SIDES) + 1))[:n_dims]
    # Chainer tries rules in this way as well, to learn what they keep.
    probe, array = copy.copy(rule), np.zeros(shape, np.float32)
    probe._state = {}
    probe.init_state(chainer.Variable(array, grad=array))
    for key, value in probe.state.items():
        if getattr(value, "shape", None) == shape:
            yield key


def note_averages(model: Link, arrays: Arrays) -> None:
    """Notes in the ledger running averages of other shapes than their parameters.

    Args:
        model: The layers.
        arrays: The arrays that are to be loaded, by their paths in the model.
    """
    for path, link in model.namedlinks():
        if not link._persistent >= _AVERAGES:
            continue
        above = f"{path}/".lstrip("/")
        keys = [above + name for name in (*sorted(link._params), *sorted(_AVERAGES))]
        outlines = {key: arrays.outline(key) for key in keys if key in arrays}
        shapes = {k: each.shape for k, each in outlines.items() if not is_none(each)}
        first = next(iter(shapes), "")
        for key, shape in shapes.items():
            if shape != shapes[first]:
                arrays.ledger.unlike.append(
                    f"{key} was saved with shape {shape}, but {first} of the same layer"
                    f" with {shapes[first]}"
                )
