"""Skip connections: a layer hands a tensor to a later layer, past those in between.

::

    position    0      1           2      3      4           5
    layer       conv   stash('a')  pool   conv   pop('a')    conv
                          :                         ^
                          '- - - - - - - - - - - - -'

The two ends are layers like any other, so a model can be cut anywhere between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer


class Skip(NamedTuple):
    """A skip connection of a model.

    Attributes:
        name: What it is called at both ends.
        stash: Position of the layer that hands the tensor over.
        pop: Position of the layer that takes it.
    """

    name: str
    stash: int
    pop: int


class SkipEnd:
    """A layer that is an end of a skip connection."""

    def __init__(self, name: str) -> None:
        self.name = _check_name(name)

    def __call__(self, *x: Any) -> Any:
        """Refuses to be called outside of a model."""
        raise RuntimeError(f"{self} works as a layer of a Divisible, not by itself")

    def run(self, x: Any, skipped: dict[str, Any]) -> Any:
        """Does what the layer does in a model.

        Args:
            x: The output of the layer before.
            skipped: What is on its way to later layers, by name; is changed.

        Returns:
            The output.
        """
        raise NotImplementedError


class Stash(SkipEnd):
    """The layer that :func:`stash` makes."""

    def run(self, x: Any, skipped: dict[str, Any]) -> Any:
        """Hands ``x`` over, and returns it; of arrays in no variable, hands copies."""
        if self.name in skipped:
            raise ValueError(f"{self} is there a second time")
        # The next layer may change them in place, and a message be sent before that.
        values = [
            value.copy() if isinstance(value, chainer.get_array_types()) else value
            for value in (x if isinstance(x, tuple) else (x,))
        ]
        skipped[self.name] = tuple(values) if isinstance(x, tuple) else values[0]
        return x

    def __repr__(self) -> str:
        return f"stash({self.name!r})"


class Pop(SkipEnd):
    """The layer that :func:`pop` makes.

    Attributes:
        joined_by: What it joins with; ``None`` for a tuple.
    """

    def __init__(self, name: str, join: Callable[..., Any] | None = None) -> None:
        super().__init__(name)
        if join is not None and not callable(join):
            raise TypeError(f"pop({name!r}): join must be a function, not {join!r}")
        self.joined_by = join

    def run(self, x: Any, skipped: dict[str, Any]) -> Any:
        """Takes what was handed over, and joins it with ``x``."""
        if self.name not in skipped:
            raise KeyError(
                f"{self} has nothing to take: the layer that hands it over is not among"
                f" the layers here; a Pipeline passes it from stage to stage"
            )
        return self.join(x, skipped.pop(self.name))

    def join(self, x: Any, skipped: Any) -> Any:
        """Returns what the next layer is called with."""
        x = x if isinstance(x, tuple) else (x,)
        skipped = skipped if isinstance(skipped, tuple) else (skipped,)
        return (
            (*x, *skipped) if self.joined_by is None else self.joined_by(*x, *skipped)
        )

    def __repr__(self) -> str:
        if self.joined_by is None:
            return f"pop({self.name!r})"
        name = getattr(self.joined_by, "__qualname__", type(self.joined_by).__name__)
        return f"pop({self.name!r}, {name})"


def stash(name: str) -> Stash:
    """Returns a layer that hands its input to a later layer, and passes it on.

    The later layer gets it as it is here: the next one may change an array in place,
    though not that of a variable, which the graph has as well.

    Args:
        name (str): What :func:`pop` calls it; once in a model, without blanks.

    Raises:
        TypeError: If the name is no text.
        ValueError: If it is empty or has blanks, or one of ``<``, ``>`` and ``.``.

    Example:
        >>> import chainer.functions as F
        >>> import numpy as np
        >>> from divisible import Divisible, pop, stash
        >>> model = Divisible(stash('x'), F.relu, pop('x', F.add))
        >>> model(np.array([[-1, 2]], np.float32)).array
        array([[-1.,  4.]], dtype=float32)
    """
    return Stash(name)


def pop(name: str, join: Callable[..., Any] | None = None) -> Pop:
    """Returns a layer that takes what :func:`stash` handed over.

    Args:
        name (str): What :func:`stash` called it.
        join: ``join(x, skipped)`` returns the layer's output, for example ``F.add``.
            If left out, that is the tuple ``(x, skipped)``, which the next layer gets
            as two inputs.

    Raises:
        TypeError: If the name is no text or ``join`` no function.
        ValueError: If the name is not one for :func:`stash`.

    Example:
        >>> import chainer.functions as F
        >>> import numpy as np
        >>> from divisible import Divisible, pop, stash
        >>> model = Divisible(
        ...     stash('x'), F.relu, pop('x'), lambda y, x: F.concat([y, x])
        ... )
        >>> model(np.array([[-1, 2]], np.float32)).array
        array([[ 0.,  2., -1.,  2.]], dtype=float32)
    """
    return Pop(name, join)


def aside(layer: Any, skipped: Mapping[str, Any]) -> tuple | None:
    """Returns what a layer takes besides what the layer before it returned.

    Args:
        layer: Any layer.
        skipped: What is on its way to later layers, by name.

    Returns:
        That as a tuple; ``None`` of a layer that takes nothing, or if it is not there.

    Example:
        >>> aside(pop('x'), {'x': 5})
        (5,)
        >>> aside(abs, {'x': 5})
    """
    if not isinstance(layer, Pop) or layer.name not in skipped:
        return None
    taken = skipped[layer.name]
    return taken if isinstance(taken, tuple) else (taken,)


def find_skips(layers: Sequence[Any]) -> tuple[Skip, ...]:
    """Finds the skip connections of a model, and checks them.

    Args:
        layers: All layers of the undivided model.

    Returns:
        The skips in the order in which they are stashed.

    Raises:
        ValueError: If a name is stashed or popped twice, stashed and never popped, or
            popped before it is stashed, or never stashed; with the positions.
    """
    stashed: dict[str, int] = {}
    popped: dict[str, int] = {}
    for position, layer in enumerate(layers):
        if not isinstance(layer, SkipEnd):
            continue
        ends = stashed if isinstance(layer, Stash) else popped
        if layer.name in ends:
            raise ValueError(
                f"layer {position}: {layer} is there a second time, after layer"
                f" {ends[layer.name]}. A name is stashed once and popped once; for two"
                f" users stash it twice, under two names"
            )
        ends[layer.name] = position
    for name, position in popped.items():
        if name not in stashed:
            raise ValueError(
                f"layer {position}: {layers[position]} takes what no layer hands over;"
                f" put stash({name!r}) before it"
            )
        if stashed[name] > position:
            raise ValueError(
                f"layer {stashed[name]}: stash({name!r}) is a skip into the earlier"
                f" layer {position}, but data only moves forward"
            )
    for name, position in stashed.items():
        if name not in popped:
            raise ValueError(
                f"layer {position}: stash({name!r}) is never popped; put pop({name!r})"
                f" behind it, or leave it out"
            )
    return tuple(Skip(name, start, popped[name]) for name, start in stashed.items())


def _check_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a skip's name is text, not {name!r}")
    # The notation of messages, such as 0F0.name>3, must stay readable by parsers.
    if not name or any(c.isspace() or c in "<>." for c in name):
        raise ValueError(
            f"a skip's name must not be empty and not contain blanks, '<', '>' or '.':"
            f" {name!r}"
        )
    return name
