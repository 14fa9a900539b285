"""The state of layers, and of objects that belong to none, as arrays by key.

Chainer's objects write themselves into a flat dictionary of arrays. What belongs to a
layer has the layer's position in the undivided model at the beginning of its key, so
any cut can be put together from any other one::

    model/7/W   model/7/avg_mean   optimizer/7/W/v   optimizer/7/W/t    of layer 7
    optimizer/t   optimizer/loss_scale/scale                            of no layer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from divisible import Divisible
from pipeline.snapshots.arrays import of_range
from pipeline.snapshots.serializers import StateReader, StateWriter

# What is saved beside the objects that a user names: the global generators, and the
# pipeline's own state.
_TAKEN = ("numpy", "python", "pipeline")


def model_arrays(stage: Divisible) -> dict[str, np.ndarray]:
    """Returns parameters and persistent values of a stage's own layers, by key."""
    writer = StateWriter()
    stage.serialize(writer)
    return of_range(writer.target, stage.layer_range)


def load_model(stage: Divisible, arrays: Mapping[str, np.ndarray]) -> None:
    """Loads a stage; initializes parameters that are not yet."""
    stage.serialize(StateReader(arrays))


def object_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state of objects with a method ``serialize``, under their names."""
    writer = StateWriter()
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(writer[name])
    return writer.target


def load_objects(objects: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Loads what :func:`object_arrays` returned."""
    reader = StateReader(arrays)
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(reader[name])


def check_objects(objects: Mapping[str, Any]) -> None:
    """Refuses what has nothing to save, and names that something else has.

    Raises:
        TypeError: With the name of what has no state.
        ValueError: With the name that is taken.
    """
    for name, value in objects.items():
        if name in _TAKEN:
            raise ValueError(
                f"state[{name!r}]: the names {', '.join(_TAKEN)} are taken by what"
                f" every snapshot has; give it another one"
            )
        generators = (np.random.RandomState, np.random.Generator)
        if not hasattr(value, "serialize") and not isinstance(value, generators):
            raise TypeError(
                f"state[{name!r}] is a {type(value).__name__}, which has no method"
                f" serialize; give numbers and texts as values={{...}}"
            )
