"""Skip connections: a layer sends a tensor to a later layer, past those in between.

::

    position    0      1           2      3      4           5      6
    layer       conv   stash('a')  pool   conv   pop('a')    conv   pop('a')
                          :                         ^                  ^
                          '- - - - - - - - - - - - -'- - - - - - - - - '

The ends are layers like any other, so a model can be cut anywhere between them. A
stashed tensor may be popped several times; its gradient is the sum over its users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer


class Skip(NamedTuple):
    """A skip connection of a model; a tensor with several users has several.

    Attributes:
        name: Name of the connection at both ends.
        stash: Position of the layer that stashes the tensor.
        pop: Position of a layer that pops it.
    """

    name: str
    stash: int
    pop: int


class SkipEnd:
    """A layer that is an end of a skip connection."""

    def __init__(self, name: str) -> None:
        self.name = _check_name(name)

    def __call__(self, *x: Any) -> Any:
        """Raises an error, because the layer works only in a model."""
        raise RuntimeError(f"{self} works as a layer of a Divisible, not by itself")

    def run(self, x: Any, skipped: dict[str, Any], is_last: bool = True) -> Any:
        """Runs the layer in a model.

        Args:
            x: The output of the layer before.
            skipped: Stashed tensors for later layers, by name; changed.
            is_last (bool): Whether no later layer pops the tensor.

        Returns:
            The output.
        """
        raise NotImplementedError


class Stash(SkipEnd):
    """The layer that :func:`stash` returns."""

    def run(self, x: Any, skipped: dict[str, Any], is_last: bool = True) -> Any:
        """Stashes ``x``, and returns it. Arrays without a variable are copied."""
        if self.name in skipped:
            raise ValueError(f"{self} is there a second time")
        # The next layer may change arrays in place before a message is sent.
        skipped[self.name] = _with_own_arrays(x)
        return x

    def __repr__(self) -> str:
        return f"stash({self.name!r})"


class Pop(SkipEnd):
    """The layer that :func:`pop` returns.

    Attributes:
        joined_by: Function that joins the two inputs; ``None`` for a tuple.
        in_one_type (bool): Whether the popped tensor is cast to the floating-point type
            of the other input. ``mixed_precision.to_float16`` sets it where layers have
            different types.
    """

    in_one_type = False

    def __init__(self, name: str, join: Callable[..., Any] | None = None) -> None:
        super().__init__(name)
        if join is not None and not callable(join):
            raise TypeError(f"pop({name!r}): join must be a function, not {join!r}")
        self.joined_by = join

    def run(self, x: Any, skipped: dict[str, Any], is_last: bool = True) -> Any:
        """Pops the stashed tensor, and joins it with ``x``."""
        if self.name not in skipped:
            raise KeyError(
                f"{self} has nothing to take: the layer that hands it over is not among"
                f" the layers here; a Pipeline passes it from stage to stage"
            )
        if is_last:
            return self.join(x, skipped.pop(self.name))
        # The next layer may change arrays in place, which a later one pops as well.
        return self.join(x, _with_own_arrays(skipped[self.name]))

    def join(self, x: Any, skipped: Any) -> Any:
        """Returns the input of the next layer."""
        x = x if isinstance(x, tuple) else (x,)
        skipped = skipped if isinstance(skipped, tuple) else (skipped,)
        if self.in_one_type:
            skipped = tuple([_in_type_of(x[0], each) for each in skipped])
        return (
            (*x, *skipped) if self.joined_by is None else self.joined_by(*x, *skipped)
        )

    def __repr__(self) -> str:
        if self.joined_by is None:
            return f"pop({self.name!r})"
        name = getattr(self.joined_by, "__qualname__", type(self.joined_by).__name__)
        return f"pop({self.name!r}, {name})"


def stash(name: str) -> Stash:
    """Returns a layer that sends its input to a later layer, and also returns it.

    The later layer gets the values at this point. The next layer may change an array in
    place, but not the array of a variable, which the graph needs.

    Args:
        name (str): Name of the connection, also for :func:`pop`. It is stashed once in
            a model, and has no blanks.

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
    """Returns a layer that gets the tensor that :func:`stash` has sent.

    Several layers may pop the same tensor, on any stages. A pipeline sends the tensor
    once to each rank that has some of them.

    Args:
        name (str): Name of the connection, as given to :func:`stash`.
        join: ``join(x, skipped)`` returns the layer's output, for example ``F.add``.
            By default the output is the tuple ``(x, skipped)``, which the next layer
            gets as two inputs.

    Raises:
        TypeError: If the name is no text or ``join`` no function.
        ValueError: If the name is not valid for :func:`stash`.

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


def side_inputs(layer: Any, skipped: Mapping[str, Any]) -> tuple | None:
    """Returns the inputs of a layer besides the output of the layer before it.

    Args:
        layer: Any layer.
        skipped: Stashed tensors for later layers, by name.

    Returns:
        The inputs as a tuple; ``None`` for a layer without such inputs, or if they are
        not there.

    Example:
        >>> side_inputs(pop('x'), {'x': 5})
        (5,)
        >>> side_inputs(abs, {'x': 5})
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
        The skips in the order in which they are stashed, those of one tensor in the
        order in which it is popped.

    Raises:
        ValueError: If a name is stashed twice, stashed and never popped, or popped
            before it is stashed, or never stashed. The message has the positions.
    """
    stashed: dict[str, int] = {}
    popped: dict[str, list[int]] = {}
    for position, layer in enumerate(layers):
        if isinstance(layer, Pop):
            popped.setdefault(layer.name, []).append(position)
        elif isinstance(layer, Stash):
            if layer.name in stashed:
                raise ValueError(
                    f"layer {position}: {layer} is there a second time, after layer"
                    f" {stashed[layer.name]}. A name is stashed once; its tensor may be"
                    f" popped several times"
                )
            stashed[layer.name] = position
    for name, (position, *_) in popped.items():
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
    return tuple(
        Skip(name, start, end)
        for name, start in stashed.items()
        for end in popped[name]
    )


def last_users(skips: Sequence[Skip]) -> frozenset[int]:
    """Returns the positions of the layers behind which no layer pops their tensor.

    Example:
        >>> sorted(last_users([Skip("a", 0, 2), Skip("a", 0, 5), Skip("b", 1, 3)]))
        [3, 5]
    """
    return frozenset({skip.name: skip.pop for skip in skips}.values())


def _with_own_arrays(x: Any) -> Any:
    """Returns a value or a tuple, with copies of arrays outside of variables."""
    values = [
        value.copy() if isinstance(value, chainer.get_array_types()) else value
        for value in (x if isinstance(x, tuple) else (x,))
    ]
    return tuple(values) if isinstance(x, tuple) else values[0]


def _in_type_of(x: Any, skipped: Any) -> Any:
    """Returns a popped tensor in the dtype of another one, if both are floats."""
    if x.dtype.kind == skipped.dtype.kind == "f" and x.dtype != skipped.dtype:
        return chainer.functions.cast(skipped, x.dtype)
    return skipped


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
