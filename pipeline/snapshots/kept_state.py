"""The state that objects had before a load, to be put back if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from pipeline.snapshots import layer_state, random_states
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError


class KeptState:
    """The state of objects that belong to no layer, and of random generators.

    What cannot be written may be loaded all the same; it cannot be put back.

    Args:
        objects: What is to be loaded, by name.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self._arrays: dict[str, dict[str, Any]] = {}
        self._failures: list[str] = []
        for name, value in objects.items():
            try:
                arrays = layer_state.kept_arrays({name: value})
            except Exception as error:
                self._failures.append(f"{name} ({type(error).__name__}: {error})")
            else:
                kept = {key: array.copy() for key, array in arrays.items()}
                self._arrays[name] = kept
        self._generators: list[tuple[Callable, Any]] = []
        try:
            self._generators = random_states.kept(objects)
        except Exception as error:
            self._failures.append(f"random generators ({error})")

    def put_back(self) -> None:
        """Gives all of them the state back.

        Raises:
            SnapshotError: If some could not be written; the others have theirs back.
        """
        for name, kept in self._arrays.items():
            objects = {name: self._objects[name]}
            layer_state.load_objects(objects, Arrays({"memory": kept}))
        for set_state, state in self._generators:
            set_state(state)
        if self._failures:
            raise SnapshotError(f"could not keep the state of {self._failures[0]}")
