"""The weights of a model's layers: their sizes, and those that can be on disk.

A layer is a link that can be streamed, or a ``Chain`` with some children that can::

    Linear                      a layer of the model        model[i] = Streamed(Linear)
    Chain  (conv1, bn1, conv2)  children of a layer         chain.conv1 = Streamed(...)
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

import chainer

from divisible.model import Divisible
from divisible.planning.disk import GATHERED, STREAMABLE
from divisible.planning.optimizer_state import state_bytes
from divisible.planning.profile import Profile
from divisible.streaming.link import Streamed, why_not

#: A function that replaces a link by another one.
_Put = Callable[[chainer.Link], None]


class LayerWeights(NamedTuple):
    """The weights of a layer.

    Attributes:
        n_bytes: Bytes of all parameters, with gradients and the optimizer's state.
        freed: Bytes of the parameters that can be on disk, with gradients and state.
        streamable: Bytes of the arrays that can be on disk.
        gathered: Bytes of those among them of which a microbatch needs some rows.
        largest: Bytes of the largest array that can be on disk.
        row_bytes: Bytes of the longest row of such an array.
        reason: Reason why no array can be on disk; empty if some can.
    """

    n_bytes: int
    freed: int
    streamable: int
    gathered: int
    largest: int
    row_bytes: int
    reason: str


def weights_of(
    model: Divisible,
    optimizer: chainer.GradientMethod | None = None,
    profile: Profile | None = None,
) -> list[LayerWeights]:
    """Returns the weights of each layer. Shared weights count for the first layer.

    Args:
        model: A model in ``deferred_init``, not divided.
        optimizer: Optimizer whose state counts.
        profile: Profile with the size of the state, if there is no optimizer.

    Raises:
        StoreError: If arrays are in memory already.

    Example:
        >>> import chainer.links as L
        >>> from divisible import deferred_init
        >>> with deferred_init(0):
        ...     model = Divisible(L.Linear(100, 10), L.BatchNormalization(10))
        >>> for weights in weights_of(model):
        ...     print(weights.n_bytes, weights.freed, repr(weights.reason))
        8080 8000 ''
        160 0 'only Linear, Convolution2D and EmbedID can be'
    """
    users = _users(model)
    seen: set[int] = set()
    found = []
    for position, layer in enumerate(model):
        params: list[chainer.Parameter] = []
        if isinstance(layer, chainer.Link):
            every = {id(p): p for p in layer.params() if p.is_initialized}
            params = [param for key, param in every.items() if key not in seen]
            seen |= set(every)
        arrays, gathered, reasons = [], 0, []
        for link, _ in _places(model, position):
            reason = why_not(link)
            if not reason and users[id(link.W)] > 1:
                reason = "its weights are those of another layer as well"
            if reason:
                reasons.append(reason)
            elif any(link.W is param for param in params):
                arrays.append(link.W)
                gathered += link.W.array.nbytes * (type(link) in GATHERED)
        *names, last = (kind.__name__ for kind in STREAMABLE)
        reasons.append(f"only {', '.join(names)} and {last} can be")
        state = None
        if optimizer is None and profile is not None:
            cost = profile.layers[position]
            state = cost.optimizer_bytes / max(cost.parameter_bytes, 1)
        found.append(
            LayerWeights(
                _with_state(params, optimizer, state),
                _with_state(arrays, optimizer, state),
                sum(W.array.nbytes for W in arrays),
                gathered,
                max((W.array.nbytes for W in arrays), default=0),
                max((W.array[:1].nbytes for W in arrays), default=0),
                "" if arrays or not params else reasons[0],
            )
        )
    return found


def _with_state(
    params: list[chainer.Parameter], optimizer: Any, share: float | None
) -> int:
    """Returns the bytes of parameters, gradients and state."""
    n_bytes = sum(param.array.nbytes for param in params)
    if share is None:
        return 2 * n_bytes + state_bytes(optimizer, params)
    return round((2 + share) * n_bytes)


def put_on_disk(
    model: Divisible,
    rooms: Mapping[int, int],
    directory: str | os.PathLike | None,
) -> None:
    """Replaces links of some layers that can be streamed by streamed ones.

    Args:
        model: A model in ``deferred_init``, not divided; changed.
        rooms: Bytes of memory for the segments of a layer, by position.
        directory: Directory of the files.
    """
    users = _users(model)
    for position, room in rooms.items():
        for link, put in list(_places(model, position)):
            if not why_not(link) and users[id(link.W)] == 1:
                put(Streamed(link, directory=directory, memory=room))
        # The model keeps a text of each layer, which has changed.
        model[position] = model[position]


def _users(model: Divisible) -> collections.Counter[int]:
    """Counts the links that have each parameter, by the parameter's id."""
    return collections.Counter(
        id(param)
        for link in model.links()
        for param in (vars(link)[name] for name in link._params)
    )


def _places(model: Divisible, position: int) -> Iterator[tuple[chainer.Link, _Put]]:
    """Yields the links of a layer that might be streamed, with functions to replace."""
    layer = model[position]
    if type(layer) in STREAMABLE:
        yield layer, lambda new: _put_layer(model, layer, new)
    if not isinstance(layer, chainer.Link):
        return
    for chain in layer.links():
        if not isinstance(chain, chainer.Chain):
            continue
        for name in sorted(chain._children):
            child = getattr(chain, name)
            if type(child) in STREAMABLE:
                yield child, lambda new, at=(chain, name): _put_child(*at, new)


def _put_layer(model: Divisible, old: chainer.Link, new: chainer.Link) -> None:
    for position, layer in enumerate(list(model)):
        if layer is old:
            model[position] = new


def _put_child(chain: chainer.Chain, name: str, new: chainer.Link) -> None:
    delattr(chain, name)
    with chain.init_scope():
        setattr(chain, name, new)
