"""Parameters that several layers use: what belongs together when the model is cut.

A tie has one *path*, that of the first layer that uses the parameter. Where the users
are in several stages, each stage has a copy of its own, under that same path::

    undivided        /0/W  <-- layer 0, layer 9
    stage 0 ... 5    /0/W  <-- layer 0
    stage 6 ... 9    /0/W  <-- layer 9          a copy, kept equal by the pipeline
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
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
    """A state that several layers share and stages could not.

    Attributes:
        path: Of the link or array, by the first of the positions.
        positions: Positions of the layers it is in.
        reason: Why stages could not have it in common.
    """

    path: str
    positions: tuple[int, ...]
    reason: str


def find_ties(layers: Sequence[Any], positions: Sequence[int]) -> tuple[Tie, ...]:
    """Finds the parameters of an undivided model that several layers use.

    Args:
        layers: All its layers.
        positions: For each layer the first position at which it stands.
    """
    paths: dict[int, str] = {}
    users: dict[str, list[int]] = {}
    for position, (layer, name) in enumerate(zip(layers, positions)):
        if not isinstance(layer, Link):
            continue
        for path, param in layer.namedparams():
            tied = paths.setdefault(id(param), f"/{name}{path}")
            users.setdefault(tied, []).append(position)
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


def tied_paths(
    ties: Iterable[Tie],
    params: Mapping[str, chainer.Parameter],
    links: Mapping[Link, int],
) -> dict[str, str]:
    """Returns the paths of ties by those that links give their parameters.

    Args:
        ties: The ties.
        params: Parameters by the paths of ties, and others.
        links: For each link the position that names it.
    """
    tied = {id(params[tie.path]): tie.path for tie in ties}
    return {
        f"/{position}{path}": tied[id(param)]
        for link, position in links.items()
        for path, param in link.namedparams()
        if id(param) in tied
    }


def with_own_copies(
    layers: Sequence[Any], shared: Sequence[chainer.Parameter]
) -> list[Any]:
    """Copies some parameters of layers, and the links around them, and nothing else.

    Args:
        layers: The layers.
        shared: The parameters to copy; each gets one copy, however many layers use it.

    Returns:
        The layers, those with copied parameters as copies.
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
    return result


def replace_parameter(
    layer: Link, old: chainer.Parameter, new: chainer.Parameter
) -> list[str]:
    """Puts a parameter in the place of another one; returns the paths of its places."""
    paths = []
    # Link by link: namedparams() names a parameter once, however many have it.
    for above, link in layer.namedlinks():
        for name in sorted(link._params):
            if vars(link)[name] is old:
                vars(link)[name] = new
                paths.append(f"{above.rstrip('/')}/{name}")
    return paths


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
