"""Actions on links that wait until the links are made."""

from __future__ import annotations

import itertools
import operator
import os
import weakref
from typing import Any, Callable

import chainer
from chainer import Link

from chainer_compat.npz import NpzArrays, allow_pickle, allowed_names
from divisible.deferred.recipe import NotMadeError

Action = Callable[[Link], Any]
Serialize = Callable[[Link, chainer.AbstractSerializer], None]

# Actions of links that are not made, with numbers in the order of the calls. They are
# not kept by a model, because a link may be in several models, one within another.
_postponed: weakref.WeakKeyDictionary[Link, list[tuple[int, Action]]] = (
    weakref.WeakKeyDictionary()
)
_numbers = itertools.count()


def postpone(link: Link, action: Action) -> None:
    """Records an action, to be run when the link is made."""
    _postponed.setdefault(link, []).append((next(_numbers), action))


def follow(original: Any, copy: Any) -> None:
    """Copies the actions that wait for a layer to a copy of the layer."""
    if not (_postponed and isinstance(original, Link)) or copy is original:
        return
    # Links are matched by path, because a copy may have fewer links.
    copies = dict(copy.namedlinks())
    for path, link in original.namedlinks():
        if link in _postponed and path in copies:
            _postponed[copies[path]] = list(_postponed[link])


def act(layer: Any) -> None:
    """Runs the actions that wait for a layer, or for links within the layer."""
    if not isinstance(layer, Link):
        return
    actions = [
        (number, link, action)
        for link in layer.links()
        for number, action in _postponed.pop(link, ())
    ]
    for _, link, action in sorted(actions, key=operator.itemgetter(0)):
        action(link)


def load_later(serialize: Serialize, deserializer: Any) -> Action:
    """Returns a function that loads a link later, from the deserializer's file."""
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

    allowed = allowed_names()

    def load(link: Link) -> None:
        with allow_pickle(*allowed), NpzArrays(file) as again:
            serialize(link, chainer.serializers.NpzDeserializer(again, *kept))

    return load
