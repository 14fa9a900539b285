"""Actions on links that are put off until the links are made."""

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

# What to do to links once they are made, in the order in which it was asked for. Not
# kept by a model: a link may be in several, one within another.
_postponed: weakref.WeakKeyDictionary[Link, list[tuple[int, Action]]] = (
    weakref.WeakKeyDictionary()
)
_numbers = itertools.count()


def postpone(link: Link, action: Action) -> None:
    """Puts an action off."""
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


def act(layer: Any) -> None:
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


def load_later(serialize: Serialize, deserializer: Any) -> Action:
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

    allowed = allowed_names()

    def load(link: Link) -> None:
        with allow_pickle(*allowed), NpzArrays(file) as again:
            serialize(link, chainer.serializers.NpzDeserializer(again, *kept))

    return load
