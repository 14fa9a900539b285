"""The layers of a model that were built in ``deferred_init``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from chainer import Link

from divisible.deferred.array import DeferredArray
from divisible.deferred.keyed_random import keyed_random
from divisible.deferred.postponed import Action, Serialize, act, load_later, postpone
from divisible.deferred.recipe import NotMadeError, new_key
from divisible.deferred.scope import KeyedInitializer, at_once, ever_deferred
from divisible.deferred.search import Found, find, is_deferred, keyed_initializer


class DeferredLayers:
    """The layers of a model that are not made yet.

    Attributes:
        waiting (bool): Whether the model may have such layers.
        first_calls (dict): Keys of random draws in the first calls of layers that get
            their sizes then, by position.
        keys (set): All keys that random draws of the model ever got.
    """

    def __init__(self) -> None:
        self.waiting = False
        self.first_calls: dict[int, str] = {}
        self.keys: set[str] = set()

    def add(self, layer: Any) -> None:
        """Records whether a layer that the model gets is deferred."""
        self.waiting = self.waiting or is_deferred(layer)

    def check(self, layers: Sequence[Any], model: str) -> None:
        """Raises an error if some layers are not made.

        Raises:
            NotMadeError: If there are any.
        """
        waiting = [i for i, layer in enumerate(layers) if is_deferred(layer)]
        self.waiting = bool(waiting)
        if waiting:
            raise NotMadeError(
                f"the layers {waiting} of {model} were built in deferred_init and are"
                f" not made yet. Call what model.divide(start, end) returns, or first"
                f" model.divide(), which makes all layers"
            )

    def do(self, action: Action, link: Link) -> None:
        """Runs an action on a link, now or when the link is made."""
        if self.waiting and is_deferred(link):
            postpone(link, action)
        else:
            action(link)

    def serialize(self, link: Link, serialize: Serialize, serializer: Any) -> None:
        """Loads or saves a link. A link that is not made is loaded when it is made.

        Args:
            link: The link.
            serialize: Function that loads or saves the link.
            serializer: The serializer to load from or save to.

        Raises:
            NotMadeError: If the link cannot be loaded later.
        """
        if self.waiting and is_deferred(link):
            postpone(link, load_later(serialize, serializer))
        else:
            serialize(link, serializer)

    def copied(self) -> DeferredLayers:
        """Returns a copy of this object for a copy of the model."""
        ret = copy.copy(self)
        ret.first_calls, ret.keys = dict(self.first_calls), set(self.keys)
        return ret

    def assign_places(self, layers: Mapping[int, Any]) -> None:
        """Ties the random draws of deferred parameters to the positions of layers.

        Parameters that layers share or copy are tied to the first position.

        Args:
            layers: All layers of the model, by their first positions.
        """
        if not ever_deferred():
            return
        for position in sorted(layers):
            for path, value, _ in find(layers[position]):
                place = f"{position}{path}"
                if isinstance(value, DeferredArray):
                    value.recipe.assign_keys(place, self.keys)
                    continue
                keyed = keyed_initializer(value)
                if keyed is not None and keyed.key is None:
                    keyed.key = new_key(keyed.seed, place, self.keys)

    def make(self, stage: Mapping[int, tuple[int, Any]]) -> DeferredLayers:
        """Makes the layers of a stage, whose places are assigned.

        Args:
            stage: For each position in the stage the first position of its layer, and
                the layer.

        Returns:
            DeferredLayers: The deferred layers of the stage.

        Raises:
            RuntimeError: If an initializer fails.
        """
        ret = DeferredLayers()
        if not ever_deferred():
            return ret
        for first, layer in stage.values():
            _make_layer(first, layer)
            act(layer)
        ret.await_first_calls(stage)
        # The model may also be called, after ``model.divide()``.
        self.first_calls.update(ret.first_calls)
        return ret

    def await_first_calls(self, stage: Mapping[int, tuple[int, Any]]) -> None:
        """Gives a key to each layer that gets its sizes in its next call.

        Args:
            stage: Layers by position; see :meth:`make`.
        """
        for position, (first, layer) in stage.items():
            key = _first_call_key(first, layer)
            if key is not None:
                self.first_calls[position] = key

    def first_call(self, position: int, layer: Any, inputs: tuple) -> Any:
        """Calls a layer that gets its sizes in this call, and may draw its weights.

        Args:
            position (int): One of `first_calls`.
            layer: The layer there.
            inputs: Inputs of the layer.

        Returns:
            The outputs of the layer.
        """
        if _first_call_key(position, layer) is None:
            # The layer has its sizes by now, for example from a file.
            draws: AbstractContextManager = nullcontext()
        else:
            draws = keyed_random(self.first_calls[position])
        with draws:
            output = layer(*inputs)
        # The key serves one call, even if some parameter has no size yet: later calls
        # must draw other dropout. A parameter that gets its size later has its own key.
        self.first_calls.pop(position, None)
        return output


def _make_layer(position: int, layer: Any) -> None:
    """Makes the arrays of a layer whose places are assigned.

    Args:
        position (int): Position in the undivided model, for errors.
        layer: The layer.

    Raises:
        RuntimeError: If an initializer fails.
    """
    with at_once():
        for found in list(find(layer)):
            try:
                _make(found)
            except Exception as error:
                raise RuntimeError(
                    f"layer {position} ({type(layer).__name__}): {found.path} cannot"
                    f" be initialized: {error}"
                ) from error


def _make(found: Found) -> None:
    value = found.value
    if isinstance(value, DeferredArray):
        if found.put is None:
            raise TypeError("it is in a tuple, which cannot be changed; use a list")
        found.put(value.make())
        return
    initializer = getattr(value, "initializer", None)
    if isinstance(initializer, KeyedInitializer) and value.is_initialized:
        value.initializer = initializer.initializer


def _first_call_key(position: int, layer: Any) -> str | None:
    """Returns the key of all random draws in the first call of a layer.

    A parameter that gets its size in the call has its own key. But a link may draw for
    it in another way, as ``L.LSTM(None, n)`` does.

    Returns:
        str or None: The key, or ``None`` if all parameters have their sizes.
    """
    for _, value, _ in find(layer):
        keyed = keyed_initializer(value)
        if keyed is not None and not value.is_initialized:
            return f"{keyed.seed}:{position}:first call"
    return None
