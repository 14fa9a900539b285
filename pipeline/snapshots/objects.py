"""The state of objects outside of layers: trainers, iterators, random generators."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, TypeVar

import numpy as np
from chainer import training
from chainer.training import Trainer

from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.serializers import StateReader, StateWriter, read

# Names of other state in a snapshot: the global generators, and the pipeline.
_TAKEN = ("numpy", "python", "pipeline")
_Serializer = TypeVar("_Serializer", StateReader, StateWriter)
_SCRIPT, _LOADED = "hyperparameters of the script", "hyperparameters that were loaded"


def object_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state of objects with a method ``serialize``, under their names."""
    writer = StateWriter()
    for name, value in objects.items():
        if hasattr(value, "serialize"):
            value.serialize(writer[name])
    return writer.target


def kept_arrays(objects: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state that :func:`load_objects` changes, also of waiting trainers."""
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
    """Yields the functions that read or write an object's parts, with serializers.

    Parts of a trainer are separate, so that it can be loaded if an extension was not
    saved. Its time is that of earlier runs: a trainer that has not started has no
    other.
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

    The script chooses the trigger of an extension, and a progress bar that is left out
    has none. So keys of triggers that are left over are not a difference.
    """
    if not isinstance(value, Trainer):
        return []
    above = (f"{name}/extension_triggers/", f"{name}/stop_trigger/")
    return [key for key in arrays if key.startswith(above)]


def check_objects(objects: Mapping[str, Any]) -> None:
    """Refuses objects that cannot be saved, and names that are taken.

    Raises:
        TypeError: If an object has no state, with its name.
        ValueError: If a name is taken.
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


def dump_random_states(objects: Mapping[str, Any]) -> str:
    """Returns the states of random generators as JSON.

    These are the global generators of NumPy and Python, the generators among
    ``objects``, and those of the iterators' orders.
    """
    states = {name: get() for name, get, _ in _generators(objects)}
    return json.dumps(states, default=_as_list)


def load_random_states(arrays: Arrays, whose: str, objects: Mapping[str, Any]) -> None:
    """Sets random generators to the states from :func:`dump_random_states`.

    Args:
        arrays: States of all ranks by number, and of the ``first`` stage's rank.
        whose: Key of the states to set. A generator that they lack gets the state of
            the first rank that had it.
        objects: Objects that may have generators; see :func:`dump_random_states`.
    """
    states = {}
    for key in (whose, *sorted(arrays)):
        with arrays.blamed(key):
            for name, state in arrays.json(key).items():
                states.setdefault(name, (key, state))
    for name in states:
        arrays.leave(name)
    for name, _, set_state in _generators(objects):
        if name not in states:
            arrays.miss(name)
            continue
        arrays.take(name)
        key, state = states[name]
        with arrays.blamed(f"{key}, {name}"):
            set_state(state)


def kept_generators(objects: Mapping[str, Any]) -> list[tuple[Callable, Any]]:
    """Returns, for each generator, a function that sets its state, and the state.

    Args:
        objects: Objects that may have generators; see :func:`dump_random_states`.
    """
    return [(set_state, get()) for _, get, set_state in _generators(objects)]


def _generators(objects: Mapping[str, Any]) -> Iterator[tuple[str, Callable, Callable]]:
    """Yields each generator's name, and functions that get and set its state."""
    yield "numpy", *_of_numpy(np.random)
    yield "python", random.getstate, _set_python_state
    for name, value in _with_iterators(objects):
        if hasattr(value, "order_sampler"):
            value = getattr(value.order_sampler, "_random", None)
        if isinstance(value, np.random.RandomState):
            yield name, *_of_numpy(value)
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            yield name, partial(getattr, bits, "state"), partial(setattr, bits, "state")


def _of_numpy(generator: Any) -> tuple[Callable, Callable]:
    return partial(generator.get_state, legacy=False), generator.set_state


def _set_python_state(state: Any) -> None:
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def _with_iterators(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields objects, and the iterators of trainers and updaters among them."""
    for name, value in objects.items():
        yield name, value
        updater = getattr(value, "updater", value)
        for key, iterator in getattr(updater, "_iterators", {}).items():
            yield f"{name}/iterator:{key}", iterator


def _as_list(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"a random state with a {type(value)} cannot be saved")


class KeptState:
    """The state of objects outside of layers, and of random generators.

    A state that cannot be written cannot be put back, but may be loaded.

    Args:
        objects: Objects to load, by name.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self._arrays: dict[str, dict[str, Any]] = {}
        self._failures: list[str] = []
        for name, value in objects.items():
            try:
                arrays = kept_arrays({name: value})
            except Exception as error:
                self._failures.append(f"{name} ({type(error).__name__}: {error})")
            else:
                kept = {key: array.copy() for key, array in arrays.items()}
                self._arrays[name] = kept
        self._generators: list[tuple[Callable, Any]] = []
        try:
            self._generators = kept_generators(objects)
        except Exception as error:
            self._failures.append(f"random generators ({error})")

    def put_back(self) -> None:
        """Restores the state of all objects.

        Raises:
            SnapshotError: If some states could not be written; the others are restored.
        """
        for name, kept in self._arrays.items():
            objects = {name: self._objects[name]}
            load_objects(objects, Arrays({"memory": kept}))
        for set_state, state in self._generators:
            set_state(state)
        if self._failures:
            raise SnapshotError(f"could not keep the state of {self._failures[0]}")


@contextmanager
def loaded_as_if_running(
    objects: Mapping[str, Any], optimizers: Sequence[Any]
) -> Iterator[None]:
    """Loads waiting trainers as if they had started.

    When a trainer starts, extensions such as ``ExponentialShift`` record the value that
    they begin with, and some set it. If they found the lowered learning rate of a
    snapshot, they would lower it twice. So it is put aside while they initialize::

        load        learning rate of the snapshot; a script may set another one
        run         learning rate of the script before it loaded
                    extensions initialize themselves
                    learning rate of the snapshot, or the other one

    Args:
        objects: Objects to load, with the trainers among them.
        optimizers: Optimizers whose hyperparameters the block loads.
    """
    waiting = [
        trainer
        for trainer in objects.values()
        if isinstance(trainer, training.Trainer) and trainer._start_at is None
    ]
    script = [(each.hyperparam, each.hyperparam.get_dict()) for each in optimizers]
    yield
    for trainer in waiting:
        if _SCRIPT not in trainer._extensions:
            begin = _SetToScripts()
            trainer.extend(begin, name=_SCRIPT)
            trainer.extend(_SetBack(begin), name=_LOADED)
        trainer.get_extension(_SCRIPT).add(script)


class _AtStart(training.Extension):
    """An extension that acts when a trainer starts, and not later."""

    def trigger(self, trainer: Any) -> bool:
        return False


class _SetToScripts(_AtStart):
    """Sets hyperparameters to the values before they were loaded."""

    priority = math.inf

    def __init__(self) -> None:
        self._script: dict[int, tuple[Any, dict[str, Any]]] = {}
        #: The hyperparameters when the trainer started.
        self.put_aside: list[tuple[Any, dict[str, Any]]] = []

    def add(self, script: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        """Adds hyperparameters; if some are loaded again, their first values count."""
        for hyperparam, values in script:
            self._script.setdefault(id(hyperparam), (hyperparam, values))

    def initialize(self, trainer: Any) -> None:
        both = list(self._script.values())
        self.put_aside = [(hyperparam, hyperparam.get_dict()) for hyperparam, _ in both]
        _set(both)


class _SetBack(_AtStart):
    """Sets hyperparameters to the values that were put aside."""

    # After extensions that change some, and before pipeline.snapshot, which may load.
    priority = -99

    def __init__(self, begin: _SetToScripts) -> None:
        self._begin = begin

    def initialize(self, trainer: Any) -> None:
        _set(self._begin.put_aside)


def _set(values: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    for hyperparam, numbers in values:
        for name, number in numbers.items():
            setattr(hyperparam, name, number)
