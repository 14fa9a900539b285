"""State that a layer carries from minibatch to minibatch: truncated back-propagation.

A text that is too long for one minibatch is read in windows. Each window begins with
the state at the end of the one before, cut from its graph::

    minibatch 0      minibatch 1      minibatch 2
    words 0..34 -h-> words 35..69 -h-> words 70..104
    <-- backward     <-- backward      <-- backward

While its layer computes, the state lies in attributes of a link, such as ``h`` and
``c`` of ``L.LSTM``. Between minibatches a pipeline stores the state of all samples in
persistent values of the link. So it is in snapshots, and moves with the layer.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import chainer
import chainer.links as L

_Link = TypeVar("_Link", bound=chainer.Link)
#: Attribute of a link with its declared states: the batch axis of each, by name.
_DECLARED = "carried_states"
_PREFIX = "carried_"
# Names of the attributes in which Chainer's links keep their state.
_KNOWN = {
    L.LSTM: ("c", "h"),
    L.StatefulPeepholeLSTM: ("c", "h"),
    L.StatefulZoneoutLSTM: ("c", "h"),
    L.StatefulGRU: ("h",),
    L.StatefulMGU: ("h",),
}


def carry_state(
    link: _Link, names: str | Iterable[str] | None = None, axis: int = 0
) -> _Link:
    """Declares the state that a link carries from one minibatch to the next.

    In a :class:`~pipeline.Pipeline` each sample of a minibatch continues from the state
    that the sample in the same place left in the minibatch before. As in a serial
    script that calls ``loss.unchain_backward()``, this holds for any microbatches,
    schedule and cut. Evaluations have a separate state, which is reset after each step
    of training. A call of ``pipe.reset_states()`` resets all states.

    If a minibatch has fewer samples than the one before, the other states stay.

    Args:
        link: A link with attributes that hold variables, arrays or ``None``. Its
            forward begins from these and replaces them.
        names (str or iterable of str): Names of the attributes. Those of ``L.LSTM`` and
            Chainer's other links with a state are known.
        axis (int): Axis of the attributes along which the samples are.

    Returns:
        chainer.Link: The given link.

    Raises:
        TypeError: If ``link`` is no link, or the axis no integer.
        ValueError: If the link has no such attribute, the names must be given, or the
            axis is negative.

    Example:
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline
        >>> class Recurrent(chainer.Chain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         with self.init_scope():
        ...             self.lstm = carry_state(L.LSTM(4, 3))
        ...
        ...     def forward(self, x):  # samples, positions, units
        ...         hs = [self.lstm(x[:, i]) for i in range(x.shape[1])]
        ...         return hs[-1]
        >>> stage = Divisible(Recurrent())
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
        >>> x, t = np.ones((6, 5, 4), np.float32), np.zeros(6, np.int32)
        >>> first, second = (pipe.step(x, t)['loss'] for _ in range(2))
        >>> first == second         # it has not begun from zeros again
        False
        >>> stage[0].lstm.carried_h.shape
        (6, 3)
    """
    if not isinstance(link, chainer.Link):
        raise TypeError(f"carry_state: expected a link, not a {type(link).__name__}")
    if names is None:
        names = next((n for kind, n in _KNOWN.items() if isinstance(link, kind)), None)
        if names is None:
            raise ValueError(
                f"carry_state({type(link).__name__}): say in which attributes its state"
                f" is, as in carry_state(link, ('c', 'h'))"
            )
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(
            f"carry_state: axis={axis!r} must be an integer, that of the samples"
        ) from None
    if axis < 0:
        raise ValueError(f"carry_state: axis={axis} must be 0 or more")
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in vars(link):
            raise ValueError(
                f"carry_state({type(link).__name__}, {name!r}): it has no such"
                f" attribute; set it to None in __init__"
            )
        if name in link._params or name in link._persistent:
            raise ValueError(
                f"carry_state({type(link).__name__}, {name!r}): it is a parameter or"
                f" a persistent value, which is the same for all samples"
            )
        if place_of(name) not in link._persistent:
            link.add_persistent(place_of(name), None)
    setattr(link, _DECLARED, {**declared(link), **dict.fromkeys(names, axis)})
    return link


def declared(link: chainer.Link) -> Mapping[str, int]:
    """Returns the batch axes of declared states, by the names of their attributes."""
    return getattr(link, _DECLARED, {})


def place_of(name: str) -> str:
    """Returns the name of the persistent value that stores an attribute's state."""
    return f"{_PREFIX}{name}"


def is_place(link: chainer.Link, name: str) -> bool:
    """Returns whether a persistent value of a link stores such a state."""
    return any(place_of(each) == name for each in declared(link))


def carrying(layers: Iterable[Any], start: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the links of layers that carry a state, each once, with their paths.

    Args:
        layers: The layers.
        start (int): The position of the first one.
    """
    seen = set()
    for position, layer in enumerate(layers, start):
        if not isinstance(layer, chainer.Link):
            continue
        for path, link in layer.namedlinks():
            if declared(link) and id(link) not in seen:
                seen.add(id(link))
                yield f"/{position}{path}".rstrip("/"), link
