"""The random generators of a run: the global ones and those of iterators."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Callable

import numpy as np


def dump_random_states(objects: Mapping[str, Any]) -> str:
    """Returns the states of random generators as JSON.

    They are the global ones of NumPy and Python, those among ``objects``, and those
    from which iterators among them draw their order.
    """
    states = {name: get() for name, get, _ in _generators(objects)}
    return json.dumps(states, default=_as_list)


def load_random_states(text: str, objects: Mapping[str, Any]) -> None:
    """Sets random generators to what :func:`dump_random_states` returned."""
    states = json.loads(text)
    for name, _, set_state in _generators(objects):
        if name in states:
            set_state(states[name])


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
