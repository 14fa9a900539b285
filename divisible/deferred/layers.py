"""The layers of a model that were built in ``deferred_init``."""

from __future__ import annotations

import functools
import itertools
import operator
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from chainer import Link

from divisible.deferred.array import DeferredArray, NotMadeError, new_key
from divisible.deferred.keyed_random import keyed_random
from divisible.deferred.scope import KeyedInitializer, at_once, ever_deferred

Action = Callable[[Link], Any]
Serialize = Callable[[Link, chainer.AbstractSerializer], None]


# What to do to links once they are made, in the order in which it was asked for. Not
# kept by a model: a link may be in several, one within another.
_postponed: weakref.WeakKeyDictionary[Link, list[tuple[int, Action]]] = (
    weakref.WeakKeyDictionary()
)
_numbers = itertools.count()


class DeferredLayers:
    """What a model knows about those of its layers that are not made yet.

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
            _postpone(link, action)
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
            _postpone(link, _load_later(serialize, serializer))
        else:
            serialize(link, serializer)

    def copied(self) -> DeferredLayers:
        """Returns the same for a copy of the model."""
        ret = DeferredLayers()
        ret.waiting = self.waiting
        ret.first_calls = dict(self.first_calls)
        ret.keys = set(self.keys)
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
            for path, value, _ in _find(layers[position]):
                place = f"{position}{path}"
                if isinstance(value, DeferredArray):
                    value.recipe.assign_keys(place, self.keys)
                    continue
                for array, kind in ((value.raw_array, ""), (value._grad, ".grad")):
                    if isinstance(array, DeferredArray):
                        array.recipe.assign_keys(place + kind, self.keys)
                keyed = _keyed_initializer(value)
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
        for position, (first, layer) in stage.items():
            _make_layer(first, layer)
            _act(layer)
            key = _first_call_key(first, layer)
            if key is not None:
                # The model may be called as well, after ``model.divide()``.
                ret.first_calls[position] = self.first_calls[position] = key
        return ret

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


# -- what is put off until a link is made ---------------------------------------


def _postpone(link: Link, action: Action) -> None:
    _postponed.setdefault(link, []).append((next(_numbers), action))


def follow(original: Any, copy: Any) -> None:
    """Sees to it that what was put off for a layer happens to a copy of it too."""
    if not (_postponed and isinstance(original, Link)) or copy is original:
        return
    # By path: a copy may have less in it.
    copies = dict(copy.namedlinks())
    for path, link in original.namedlinks():
        if link in _postponed and path in copies:
            _postponed[copies[path]] = list(_postponed[link])


def _act(layer: Any) -> None:
    """Does what was put off for a layer, or for links within."""
    if not isinstance(layer, Link):
        return
    actions = [
        (number, link, action)
        for link in layer.links()
        for number, action in _postponed.pop(link, ())
    ]
    for _, link, action in sorted(actions, key=operator.itemgetter(0)):
        action(link)


# -- finding what is deferred in a layer ----------------------------------------


class _Found(NamedTuple):
    """An array or a variable somewhere in a layer."""

    path: str
    value: DeferredArray | chainer.Variable
    #: Puts another array in the place of an array.
    put: Callable[[np.ndarray], Any] | None


def _find(layer: Any) -> Iterator[_Found]:
    """Finds the deferred arrays and all variables that a layer's attributes hold.

    Registered or not, also in lists, dictionaries and further links. Parameters have
    the paths that ``namedparams`` gives them.
    """
    seen: set[int] = set()

    def search(value: Any, path: str, put: Callable | None) -> Iterator[_Found]:
        if isinstance(value, (DeferredArray, chainer.Variable)):
            yield _Found(path, value, put)
            return
        if not isinstance(value, (Link, list, dict, tuple, functools.partial)):
            return
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Link):
            links = [(prefix.rstrip("/"), link) for prefix, link in value.namedlinks()]
            seen.update(id(link) for _, link in links)
            for prefix, link in links:
                for name in sorted(vars(link)):
                    yield from item(vars(link), name, path + prefix)
        elif isinstance(value, list):
            for i in range(len(value)):
                yield from item(value, i, path)
        elif isinstance(value, dict):
            for key in list(value):
                yield from item(value, key, path)
        elif isinstance(value, tuple):
            for i, part in enumerate(value):
                yield from search(part, f"{path}/{i}", None)
        else:
            yield from search((value.args, value.keywords), path, None)

    def item(container: Any, key: Any, path: str) -> Iterator[_Found]:
        put = functools.partial(container.__setitem__, key)
        yield from search(container[key], f"{path}/{key}", put)

    if isinstance(layer, (Link, functools.partial)):
        return search(layer, "", None)
    # A callable object with parameters that Chainer does not know of.
    return search(getattr(layer, "__dict__", None), "", None)


def is_deferred(layer: Any) -> bool:
    """Says whether a layer holds anything that is not made yet."""
    return ever_deferred() and any(
        _is_deferred_array(found) or _awaits_place(found) for found in _find(layer)
    )


def _is_deferred_array(found: _Found) -> bool:
    value = found.value
    if not isinstance(value, chainer.Variable):
        return True
    # The property ``grad`` refuses to give a gradient that was never cleared.
    arrays = (value.raw_array, value._grad)
    return any(isinstance(array, DeferredArray) for array in arrays)


def _awaits_place(found: _Found) -> bool:
    keyed = _keyed_initializer(found.value)
    return keyed is not None and keyed.key is None


def _keyed_initializer(value: Any) -> KeyedInitializer | None:
    """Returns what draws for a parameter, if by a key.

    Another initializer, which rounds what is drawn, say, may have it as its
    ``initializer``.
    """
    initializer = getattr(value, "initializer", None)
    while not (initializer is None or isinstance(initializer, KeyedInitializer)):
        initializer = getattr(initializer, "initializer", None)
    return initializer


# -- making layers --------------------------------------------------------------


def _make_layer(position: int, layer: Any) -> None:
    """Makes the arrays of a layer whose places are assigned.

    Args:
        position (int): In the undivided model, for errors.
        layer: The layer.

    Raises:
        RuntimeError: If an initializer fails.
    """
    with at_once():
        for found in list(_find(layer)):
            try:
                _make(found)
            except Exception as error:
                raise RuntimeError(
                    f"layer {position} ({type(layer).__name__}): {found.path} cannot"
                    f" be initialized: {error}"
                ) from error


def _make(found: _Found) -> None:
    value = found.value
    if isinstance(value, DeferredArray):
        if found.put is None:
            raise TypeError("it is in a tuple, which cannot be changed; use a list")
        found.put(value.make())
        return
    if isinstance(value.raw_array, DeferredArray):
        value.array = value.raw_array.make()
    if isinstance(value._grad, DeferredArray):
        value.grad = value._grad.make()
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
    for _, value, _ in _find(layer):
        keyed = _keyed_initializer(value)
        if keyed is not None and not value.is_initialized:
            return f"{keyed.seed}:{position}:first call"
    return None


def _load_later(serialize: Serialize, deserializer: Any) -> Action:
    """Returns what reads a link from the file that a deserializer reads now."""
    if not isinstance(deserializer, chainer.Deserializer):
        raise NotMadeError(
            "a model that was built in deferred_init has no values to save yet:"
            " divide it first, model.divide() for the whole"
        )
    npz = getattr(deserializer, "npz", None)
    name = getattr(getattr(npz, "zip", None), "filename", None)
    if name is None:
        raise NotMadeError(
            f"a model that was built in deferred_init can be loaded from a file of"
            f" save_npz, given by its path; for {type(deserializer).__name__}, divide"
            f" the model and load its stage"
        )
    file = os.path.abspath(name)
    kept = (deserializer.path, deserializer.strict, deserializer.ignore_names)

    allow_pickle = npz.allow_pickle

    def load(link: Link) -> None:
        with np.load(file, allow_pickle=allow_pickle) as again:
            serialize(link, chainer.serializers.NpzDeserializer(again, *kept))

    return load
