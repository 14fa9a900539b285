"""The state of layers, and of objects that belong to none, as arrays by key.

Chainer's objects write themselves into a flat dictionary of arrays. What belongs to a
layer has the layer's position in the undivided model at the beginning of its key, so
any cut can be put together from any other one::

    model/7/W   model/7/avg_mean   optimizer/7/W/v   optimizer/7/W/t    of layer 7
    optimizer/t   optimizer/loss_scale/scale                            of no layer
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Callable, TypeVar

import numpy as np
from chainer import Link
from chainer.training import Trainer

from divisible import Divisible
from divisible.streaming.link import SEGMENT_KEY
from pipeline.snapshots import first_calls, state_shapes
from pipeline.snapshots.arrays import Arrays, of_range
from pipeline.snapshots.dry_run import DryReader, dry_run
from pipeline.snapshots.serializers import StateReader, StateWriter, read

# What is saved beside the objects that a user names: the global generators, and the
# pipeline's own state.
_TAKEN = ("numpy", "python", "pipeline")
_Serializer = TypeVar("_Serializer", StateReader, StateWriter)


def model_arrays(stage: Divisible) -> dict[str, np.ndarray]:
    """Returns parameters and persistent values of a stage's own layers, by key."""
    writer = StateWriter()
    stage.serialize(writer)
    return of_range(writer.target, stage.layer_range)


def load_model(model: Link, arrays: Arrays) -> None:
    """Loads a stage or a loss; its layers are sized then if they were when saved.

    A dry run leaves them as they are.
    """
    for key in arrays:
        # Layers that are in memory here have no segments.
        if key.endswith(f"/{SEGMENT_KEY}"):
            arrays.take(key)
    if arrays.is_dry_run:
        links = ((f"{path}/".lstrip("/"), link) for path, link in model.namedlinks())
        with dry_run(arrays, links):
            read(model.serialize, DryReader(arrays))
        first_calls.note_dry_run(model, arrays)
        state_shapes.note_averages(model, arrays)
        return
    with first_calls.as_saved(model, arrays):
        read(model.serialize, StateReader(arrays))


def object_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state of objects with a method ``serialize``, under their names."""
    writer = StateWriter()
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(writer[name])
    return writer.target


def kept_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns what :func:`load_objects` changes, also of trainers that do not run."""
    writer = StateWriter()
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            for part, below in _parts(value, writer[name]):
                part(below)
    return writer.target


def load_objects(objects: Mapping[str, Any], arrays: Arrays) -> None:
    """Loads what :func:`object_arrays` or :func:`kept_arrays` returned."""
    reader = StateReader(arrays)
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            with arrays.blamed(name):
                for part, below in _parts(value, reader[name]):
                    read(part, below)
            for key in _of_triggers(name, value, arrays):
                arrays.take(key)


def _parts(
    value: Any, serializer: _Serializer
) -> Iterator[tuple[Callable[[_Serializer], None], _Serializer]]:
    """Yields what reads or writes each part of an object, and the serializer for it.

    If an extension of a trainer was not saved, the others go on all the same. Its time
    is that of the runs before this one: a trainer that does not run has no other.
    """
    if getattr(type(value), "serialize", None) is not Trainer.serialize:
        yield value.serialize, serializer
        return
    yield value.updater.serialize, serializer["updater"]
    parts = [(value.stop_trigger, serializer["stop_trigger"])]
    for name, entry in value._extensions.items():
        parts.append((entry.extension, serializer["extensions"][name]))
        parts.append((entry.trigger, serializer["extension_triggers"][name]))
    for part, below in parts:
        if hasattr(part, "serialize"):
            yield part.serialize, below
    yield functools.partial(_serialize_time, value), serializer


def _serialize_time(trainer: Trainer, serializer: _Serializer) -> None:
    trainer._snapshot_elapsed_time = serializer(
        "_snapshot_elapsed_time", float(trainer._snapshot_elapsed_time)
    )


def _of_triggers(name: str, value: Any, arrays: Arrays) -> list[str]:
    """Returns the keys of a trainer's triggers.

    Which trigger an extension has is the script's choice, and a progress bar that is
    left out has none: what they leave over is no difference.
    """
    if not isinstance(value, Trainer):
        return []
    above = (f"{name}/extension_triggers/", f"{name}/stop_trigger/")
    return [key for key in arrays if key.startswith(above)]


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
