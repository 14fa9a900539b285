"""The state that objects had before a load, to be put back if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.snapshots import layer_state, random_states
from pipeline.snapshots.arrays import Arrays


class KeptState:
    """The state of objects that belong to no layer, and of random generators.

    Args:
        objects: What is to be loaded, by name.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        arrays = layer_state.object_arrays(objects)
        self._arrays = {key: array.copy() for key, array in arrays.items()}
        self._generators = random_states.kept(objects)

    def put_back(self) -> None:
        """Gives all of them the state back."""
        layer_state.load_objects(self._objects, Arrays({"memory": self._arrays}))
        for set_state, state in self._generators:
            set_state(state)
