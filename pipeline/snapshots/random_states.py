"""The random generators of a run: the global ones and those of iterators."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Callable

import numpy as np

from pipeline.snapshots.arrays import Arrays


def dump_random_states(objects: Mapping[str, Any]) -> str:
    """Returns the states of random generators as JSON.

    They are the global ones of NumPy and Python, those among ``objects``, and those
    from which iterators among them draw their order.
    """
    states = {name: get() for name, get, _ in _generators(objects)}
    return json.dumps(states, default=_as_list)


def load_random_states(arrays: Arrays, whose: str, objects: Mapping[str, Any]) -> None:
    """Sets random generators to what :func:`dump_random_states` returned.

    Args:
        arrays: The states of all ranks, by their numbers, and of the ``first`` stage's.
        whose: Which of them to set. A generator that is not among those gets its state
            from the first rank that had it.
        objects: As in :func:`dump_random_states`.
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


def kept(objects: Mapping[str, Any]) -> list[tuple[Callable, Any]]:
    """Returns for each generator what sets its state, and the state that it has.

    Args:
        objects: As in :func:`dump_random_states`.
    """
    return [(set_state, get()) for _, get, set_state in _generators(objects)]


def _generators(objects: Mapping[str, Any]) -> Iterator[tuple[str, Callable, Callable]]:
    """Yields the name of each generator, and what gets and what sets its state."""
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
    """Yields objects, and of a trainer or an updater its iterators."""
    for name, value in objects.items():
        yield name, value
        updater = getattr(value, "updater", value)
        for key, iterator in getattr(updater, "_iterators", {}).items():
            yield f"{name}/iterator:{key}", iterator


def _as_list(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"a random state with a {type(value)} cannot be saved")
