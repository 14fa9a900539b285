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
        waiting (bool): Whether there may be any.
        first_calls (dict): Keys for the first calls of layers that are sized then, by
            position.
        keys (set): All that were ever given to random draws of the model.
    """

    def __init__(self) -> None:
        self.waiting = False
        self.first_calls: dict[int, str] = {}
        self.keys: set[str] = set()

    def add(self, layer: Any) -> None:
        """Looks at a layer that the model gets."""
        self.waiting = self.waiting or is_deferred(layer)

    def check(self, layers: Sequence[Any], model: str) -> None:
        """Refuses to use layers that are not made.

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
        """Does something to a link, now or when the link is made."""
        if self.waiting and is_deferred(link):
            postpone(link, action)
        else:
            action(link)

    def serialize(self, link: Link, serialize: Serialize, serializer: Any) -> None:
        """Reads or writes a link; a link that is not made reads when it is.

        Args:
            link: The link.
            serialize: Reads or writes it.
            serializer: Where from or where to.

        Raises:
            NotMadeError: If that cannot be.
        """
        if self.waiting and is_deferred(link):
            postpone(link, load_later(serialize, serializer))
        else:
            serialize(link, serializer)

    def copied(self) -> DeferredLayers:
        """Returns the same for a copy of the model."""
        ret = copy.copy(self)
        ret.first_calls, ret.keys = dict(self.first_calls), set(self.keys)
        return ret

    def assign_places(self, layers: Mapping[int, Any]) -> None:
        """Ties the random draws for deferred parameters to where these are.

        What layers share, or are copies of, is tied to the first place.

        Args:
            layers: All of the model, by their first positions.
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
            stage: For each position in the stage the first one of the layer there, and
                the layer.

        Returns:
            DeferredLayers: Of the stage.

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
        # The model may be called as well, after ``model.divide()``.
        self.first_calls.update(ret.first_calls)
        return ret

    def await_first_calls(self, stage: Mapping[int, tuple[int, Any]]) -> None:
        """Gives a key to each layer that is sized by its next call.

        Args:
            stage: As in :meth:`make`.
        """
        for position, (first, layer) in stage.items():
            key = _first_call_key(first, layer)
            if key is not None:
                self.first_calls[position] = key

    def first_call(self, position: int, layer: Any, inputs: tuple) -> Any:
        """Calls a layer that is sized, and may draw its weights, by this call.

        Args:
            position (int): One of `first_calls`.
            layer: The layer there.
            inputs: Of the layer.

        Returns:
            What the layer returns.
        """
        if _first_call_key(position, layer) is None:
            # Loaded, say.
            draws: AbstractContextManager = nullcontext()
        else:
            draws = keyed_random(self.first_calls[position])
        with draws:
            output = layer(*inputs)
        # Even if something is not sized yet: other calls want other dropout. What they
        # size has a key of its own.
        self.first_calls.pop(position, None)
        return output


def _make_layer(position: int, layer: Any) -> None:
    """Makes the arrays of a layer whose places are assigned.

    Args:
        position (int): In the undivided model, for errors.
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
    """Returns the key of all that is drawn in the first call of a layer.

    A parameter that is sized then has a key of its own, but a link may draw for it
    otherwise, as ``L.LSTM(None, n)`` does.

    Returns:
        str or None: Only if there are parameters to be sized.
    """
    for _, value, _ in find(layer):
        keyed = keyed_initializer(value)
        if keyed is not None and not value.is_initialized:
            return f"{keyed.seed}:{position}:first call"
    return None
