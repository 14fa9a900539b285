"""Parameters that several layers use, and their copies when the model is cut.

A tie has one *path*, the one in the first layer that uses the parameter. If the users
are in several stages, each stage has its own copy, under the same path::

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
        path: Path of the parameter, with the first of the positions.
        positions: Positions of all layers that use it, in the undivided model.
    """

    path: str
    positions: tuple[int, ...]


class SharedState(NamedTuple):
    """A state that several layers share, and that stages cannot share.

    Attributes:
        path: Path of the link or array, with the first of the positions.
        positions: Positions of the layers that have it.
        reason: Reason why stages cannot share it.
    """

    path: str
    positions: tuple[int, ...]
    reason: str


def find_ties(layers: Sequence[Any], positions: Sequence[int]) -> tuple[Tie, ...]:
    """Finds the parameters of an undivided model that several layers use.

    Args:
        layers: All layers of the model.
        positions: For each layer its first position.
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
    """Finds states that layers of an undivided model share, and stages cannot share.

    These are links with running averages, and arrays that several links or parameters
    have, as Chainer's ``copy()`` and ``repeat(n, 'share')`` make them.

    Args:
        layers: All layers of the model.
        positions: For each layer its first position.
    """
    links: dict[int, tuple[str, list[int]]] = {}
    # For the id of each array: its path, its owners, and the positions.
    arrays: dict[int, tuple[str, set[int], list[int]]] = {}
    for position, (layer, name) in enumerate(zip(layers, positions)):
        if not isinstance(layer, Link):
            continue
        # Copies without sizes share the cell that will hold the array.
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
    """Returns the paths of ties, by the paths that links give their parameters.

    Args:
        ties: The ties.
        params: Parameters by the paths of ties, and others.
        links: The position that names each link.
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
    """Copies some parameters of layers, and the links around them.

    Args:
        layers: The layers.
        shared: The parameters to copy; each gets one copy, however many layers use it.

    Returns:
        The layers, those with copied parameters as copies.
    """
    ids = {id(param) for param in shared}
    # Objects in the memo count as copied already, and are not copied.
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
    """Replaces a parameter by another one; returns the paths of its places."""
    paths = []
    # This goes through links, because namedparams() yields a shared parameter once.
    for above, link in layer.namedlinks():
        for name in sorted(link._params):
            if vars(link)[name] is old:
                vars(link)[name] = new
                paths.append(f"{above.rstrip('/')}/{name}")
    return paths


def check_tie(
    params: Mapping[str, chainer.Parameter], first: str, second: str, transpose: bool
) -> None:
    """Refuses parameters that cannot be tied.

    Args:
        params: The model's parameters by their paths.
        first: The path of one parameter.
        second: The path of the other parameter.
        transpose: Whether the two are transposes of each other.

    Raises:
        ValueError: If they cannot be tied. The message has both paths, and the shapes
            if these are the reason.
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


def check_transposable(
    links: Iterable[chainer.Link], dropped: chainer.Parameter, path: str
) -> None:
    """Refuses a link that cannot use the transpose of a parameter as its own.

    Args:
        links: The links of the model. Those of another library have an attribute
            ``takes_transposes``, which is false.
        dropped: The parameter that is replaced by a transpose.
        path: Its path in the model.

    Raises:
        ValueError: If such a link has the parameter.
    """
    for link in links:
        if getattr(link, "takes_transposes", True):
            continue
        if any(param is dropped for param in link.params()):
            raise ValueError(
                f"tie(..., transpose=True): {path} is a parameter of a"
                f" {type(link).__name__}, whose module has it in its own memory, and"
                f" not transposed. Tie parameters of one shape, and compute with the"
                f" transpose in the module"
            )
