"""Parameters that several layers use: what belongs together when the model is cut.

A tie has one *path*, that of the first layer that uses the parameter. Where the users
are in several stages, each stage has a copy of its own, under that same path::

    undivided        /0/W  <-- layer 0, layer 9
    stage 0 ... 5    /0/W  <-- layer 0
    stage 6 ... 9    /0/W  <-- layer 9          a copy, kept equal by the pipeline
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import chainer
from chainer import Link

_KEEPS_MORE = "the link keeps more than parameters, such as running averages"
_ARE_COPIES = (
    "they are copies with one array, as of copy() or repeat(n, 'share'), that each has"
    " an optimizer's state for; Divisible.tie makes parameters one"
)


class Tie(NamedTuple):
    """A parameter that layers at several positions use.

    Attributes:
        path: Its path, by the first of the positions.
        positions: Positions of all layers that use it, in the undivided model.
    """

    path: str
    positions: tuple[int, ...]


class SharedState(NamedTuple):
    """What several layers have in common and stages could not.

    Attributes:
        path: Of the link or array, by the first of the positions.
        positions: Positions of the layers it is in.
        reason: Why stages could not have it in common.
    """

    path: str
    positions: tuple[int, ...]
    reason: str


class Transposed(NamedTuple):
    """A weight that is the transpose of another layer's.

    Attributes:
        path: Where the layer has it, below the layer itself, such as ``/W``.
        source: The path of the other one in the model.
    """

    path: str
    source: str


def find_ties(
    layers: Sequence[Any],
    positions: Sequence[int],
    transposed: Mapping[int, Sequence[Transposed]],
) -> tuple[Tie, ...]:
    """Finds the parameters of an undivided model that several layers use.

    Args:
        layers: All its layers.
        positions: For each layer the first position at which it stands.
        transposed: The weights that are another's transpose, by their layer.
    """
    paths: dict[int, str] = {}
    users: dict[str, list[int]] = {}
    for position, (layer, name) in enumerate(zip(layers, positions)):
        if not isinstance(layer, Link):
            continue
        for path, param in layer.namedparams():
            tied = paths.setdefault(id(param), f"/{name}{path}")
            users.setdefault(tied, []).append(position)
        for weight in transposed.get(name, ()):
            users[weight.source].append(position)
    return tuple(
        Tie(path, tuple(sorted(set(found))))
        for path, found in users.items()
        if len(set(found)) > 1
    )


def find_shared_states(
    layers: Sequence[Any], positions: Sequence[int]
) -> tuple[SharedState, ...]:
    """Finds what layers of an undivided model have in common and stages could not.

    That are links with running averages; and arrays that several links or parameters
    have, as Chainer's ``copy()`` and ``repeat(n, 'share')`` make them.

    Args:
        layers: All its layers.
        positions: For each layer the first position at which it stands.
    """
    links: dict[int, tuple[str, list[int]]] = {}
    # By the array: its path, who has it, and where.
    arrays: dict[int, tuple[str, set[int], list[int]]] = {}
    for position, (layer, name) in enumerate(zip(layers, positions)):
        if not isinstance(layer, Link):
            continue
        # Copies that get their size later have the cell in common that holds the array.
        found = [
            (path, p, p._data if p.array is None else p.array)
            for path, p in layer.namedparams()
        ]
        for path, link in layer.namedlinks():
            path = path.rstrip("/")
            if link._persistent:
                place = f"/{name}{path}"
                links.setdefault(id(link), (place, []))[1].append(position)
            found += [(f"{path}/{n}", link, vars(link)[n]) for n in link._persistent]
        for path, holder, array in found:
            is_param = isinstance(holder, chainer.Parameter)
            if is_param or isinstance(array, chainer.get_array_types()):
                known = arrays.setdefault(id(array), (f"/{name}{path}", set(), []))
                known[1].add(id(holder))
                known[2].append(position)
    states = [
        SharedState(path, tuple(places), _KEEPS_MORE)
        for path, places in links.values()
        if places[1:]
    ]
    copies = [
        SharedState(path, tuple(places), _ARE_COPIES)
        for path, holders, places in arrays.values()
        if len(holders) > 1
    ]
    return tuple(states + copies)


def owner(link: Link, path: str) -> tuple[Link, str]:
    """Returns the link that has the parameter of a path, and its name there.

    Raises:
        KeyError: If there is no such link.
    """
    above, name = path.rsplit("/", 1)
    return dict(link.namedlinks())[above or "/"], name


def holder(path: str, param: chainer.Parameter) -> Link:
    """Returns a link with nothing but a parameter, as deep in it as in its layer.

    Args:
        path: In the model, such as ``/7/W``; the link stands for the layer ``/7``.
        param: The parameter.
    """
    _, _, *above, name = path.split("/")
    link = Link()
    vars(link)[name] = param
    link._params.add(name)
    for child in reversed(above):
        inner, link = link, chainer.Chain()
        link.add_link(child, inner)
    return link


def with_own_copies(
    layers: Sequence[Any], shared: Sequence[chainer.Parameter]
) -> tuple[list[Any], dict[int, Any]]:
    """Copies some parameters of layers, and the links around them, and nothing else.

    Args:
        layers: The layers.
        shared: The parameters to copy; each gets one copy, however many layers use it.

    Returns:
        The layers, and the copied parameters by the ``id`` of what they are copies of.
    """
    ids = {id(param) for param in shared}
    # What deepcopy finds in here it takes for copied already.
    memo: dict[int, Any] = {}
    result = []
    for layer in layers:
        if isinstance(layer, Link) and any(id(p) in ids for p in layer.params()):
            kept = [p for p in layer.params() if id(p) not in ids]
            for link in layer.links():
                kept += [vars(link)[name] for name in link._persistent]
            memo.update((id(value), value) for value in kept)
            try:
                layer = copy.deepcopy(layer, memo)
            except Exception as error:
                raise TypeError(
                    f"{type(layer).__name__} shares parameters with a layer before this"
                    f" stage, and cannot be copied for it: {error}. Cut so that both"
                    f" are in one stage, or keep what cannot be copied out of the link"
                ) from error
        result.append(layer)
    for param in shared:
        copy.deepcopy(param, memo)
    return result, {id(param): memo[id(param)] for param in shared}


@contextmanager
def transposed_weights(
    link: Link, weights: Sequence[tuple[Transposed, chainer.Parameter]]
) -> Iterator[None]:
    """Gives a layer the transposes of other layers' weights, for one call."""
    owners = [owner(link, weight.path) for weight, _ in weights]
    for (holder, name), (_, source) in zip(owners, weights):
        vars(holder)[name] = chainer.functions.transpose(source)
    try:
        yield
    finally:
        for holder, name in owners:
            vars(holder)[name] = None


def replace_parameter(
    layers: Sequence[Any], old: chainer.Parameter, new: chainer.Parameter
) -> None:
    """Puts a parameter in the place of another one in all links of all layers."""
    for link in _all_links(layers):
        for name in link._params:
            if vars(link)[name] is old:
                vars(link)[name] = new


def remove_parameter(layer: Link, old: chainer.Parameter) -> list[str]:
    """Takes a parameter out of a layer; returns the paths that it had there."""
    paths = []
    # Link by link: namedparams() names a parameter once, however many have it.
    for above, holder in layer.namedlinks():
        for name in sorted(holder._params):
            if vars(holder)[name] is old:
                paths.append(f"{above.rstrip('/')}/{name}")
                vars(holder)[name] = None
                holder._params.discard(name)
    return paths


def put_parameter(layer: Link, path: str, param: chainer.Parameter) -> None:
    """Undoes `remove_parameter`, with another parameter."""
    holder, name = owner(layer, path)
    vars(holder)[name] = param
    holder._params.add(name)


def _all_links(layers: Sequence[Any]) -> Iterator[Link]:
    for layer in layers:
        if isinstance(layer, Link):
            yield from layer.links()


def check_tie(
    params: Mapping[str, chainer.Parameter], first: str, second: str, transpose: bool
) -> None:
    """Refuses what cannot be tied.

    Args:
        params: The model's parameters by their paths.
        first: A path.
        second: Another one.
        transpose: Whether one is to be the transpose of the other.

    Raises:
        ValueError: With both paths, and the shapes if they are what is wrong.
    """
    what = f"tie({first!r}, {second!r}, transpose={transpose})"
    for path in (first, second):
        if path not in params:
            raise ValueError(
                f"{what}: the model has no parameter {path!r} of its own; it has"
                f" {', '.join(sorted(params)) or 'none'}"
            )
        if not params[path].is_initialized:
            raise ValueError(
                f"{what}: the shape of {path} is not known before the first call; give"
                f" its layer all sizes"
            )
    if first == second or params[first] is params[second]:
        raise ValueError(f"{what}: they are one parameter already")
    a, b = params[first], params[second]
    if transpose and a.ndim != 2:
        raise ValueError(f"{what}: only matrices are transposed, not {a.shape}")
    if a.shape != (b.shape[::-1] if transpose else b.shape) or a.dtype != b.dtype:
        turned = " transposed" if transpose else ""
        raise ValueError(
            f"{what}: {first} is {a.shape} of {a.dtype}, and {second}{turned} is"
            f" {b.shape[::-1] if transpose else b.shape} of {b.dtype}"
        )
