"""The model as a list of layers that can be cut anywhere."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Iterator
from typing import Any, Callable

import chainer
from chainer import Link

from divisible.deferred_layers import DeferredLayers

Layer = Callable[..., Any]


class Divisible(chainer.Sequential):
    """A list of layers that can be cut into pipeline stages.

    Subclass it and ``append`` the layers in ``__init__``, as in Fig. 3 of Takizawa et
    al.; any link, function or lambda is a layer. The undivided model is an ordinary
    Chainer model. :meth:`divide` gives the layers of one stage.

    Unlike in :class:`chainer.Sequential`, a layer is known by its *position in
    the undivided model*, functions counted, wherever it is::

        position          0           1      2           3      4
        model             Linear      relu   Linear      relu   Linear
                          '/0/W'             '/2/W'             '/4/W'
        divide(2, None)                      Linear      relu   Linear
                                             '/2/W'             '/4/W'

    so parameter paths, snapshots and error messages mean the same on any number
    of stages. A link that appears at several positions is one layer with one set
    of parameters; its paths carry the first of its positions.

    A layer that takes several inputs gets them from a layer that returns a tuple.

    Args:
        layers: The first layers, as for :class:`chainer.Sequential`. Calling
            ``super().__init__()`` in a subclass is optional.

    Attributes:
        layer_range (tuple): ``(start, end)``, the positions of these layers in the
            undivided model, half-open.
        model_layers (tuple): One line of text per layer of the undivided model;
            two ranks that built different models differ here.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> class MLP(Divisible):
        ...     def __init__(self, n_units):
        ...         self.append(L.Linear(784, n_units))
        ...         self.append(F.relu)
        ...         self.append(L.Linear(n_units, 10))
        >>> stage = MLP(100).divide(1, 3)
        >>> stage.layer_range
        (1, 3)
        >>> sorted(path for path, _ in stage.namedparams())
        ['/2/W', '/2/b']
    """

    # A stage knows where it lies in which model.
    _start: int = 0
    _model_layers: tuple[str, ...] | None = None
    # For each layer, the position that names it: the first one in the undivided
    # model at which it stands. Link.name would not do, another container of the
    # same link overwrites it.
    _positions: list[int]
    _deferred: DeferredLayers

    def __new__(cls, *args: Any, **kwargs: Any) -> Divisible:
        """Prepares the empty list, so that a subclass may append at once."""
        self = super().__new__(cls)
        chainer.Sequential.__init__(self)
        self._positions = []
        self._deferred = DeferredLayers()
        return self

    def __init__(self, *layers: Layer) -> None:
        for layer in layers:
            self.append(layer)

    # -- cutting ----------------------------------------------------------------

    @property
    def layer_range(self) -> tuple[int, int]:
        """``(start, end)`` in the undivided model, half-open."""
        return self._start, self._start + len(self._layers)

    @property
    def model_layers(self) -> tuple[str, ...]:
        """A line of text for each layer of the undivided model."""
        if self._model_layers is not None:
            return self._model_layers
        return tuple(_describe(layer) for layer in self._layers)

    @property
    def first_positions(self) -> tuple[int, ...]:
        """For each layer its first position in the undivided model.

        A position before that of the layer itself tells of a repeated link.
        """
        return tuple(self._positions)

    @property
    def is_stage(self) -> bool:
        """Whether this came from :meth:`divide`."""
        return self._model_layers is not None

    def divide(
        self, start: int | None = None, end: int | None = None, *, mode: str = "share"
    ) -> Divisible:
        """Returns the stage of the layers ``start`` to ``end``.

        The stage holds the very same links as this model: nothing is copied and
        nothing renamed. Drop the model, and the layers of the other stages are
        freed, unless an attribute of the model holds them in a list or other
        container; attributes that are links themselves are left out of the stage.

        Of a model that was built in :func:`deferred_init` this makes the parameters
        of these layers, and of no others; ``divide()`` makes the whole.

        Args:
            start (int or None): The position of the first layer in the undivided
                model; ``None`` for the first there is.
            end (int or None): The position after the last layer; ``None`` for the end.
            mode (str): ``'copy'`` copies the layers, and makes the copies: the model
                stays as it is, and what was made is freed with the stage.

        Returns:
            Divisible: The stage, of the same class as this model. Its list cannot
            be changed. A stage can be divided again, by the same positions.

        Raises:
            IndexError: If the range is empty, reversed or not within this model.
            ValueError: If ``mode`` is neither ``'share'`` nor ``'copy'``.
            TypeError: If this class has a ``forward`` or parameters of its own,
                which belong to no layer and so to no stage.
            RuntimeError: If a layer was deferred, and its initializer fails.

        Example:
            >>> import chainer.functions as F
            >>> model = Divisible(F.relu, F.tanh, F.sigmoid)
            >>> len(model.divide(None, 1)), len(model.divide(1, None))
            (1, 2)
        """
        first, last = self.layer_range
        start = first if start is None else operator.index(start)
        end = last if end is None else operator.index(end)
        self._check_divisible(start, end)
        if mode not in ("share", "copy"):
            raise ValueError(f"mode must be 'share' or 'copy', not {mode!r}")
        self._deferred.assign_places(dict(zip(self._positions, self._layers)))
        layers = self._layers[start - first : end - first]

        stage = copy.copy(self)
        stage._layers = layers
        stage._positions = self._positions[start - first : end - first]
        stage._start = start
        stage._model_layers = self.model_layers
        # An attribute such as ``self.head = L.Linear(...)`` beside the list must
        # not keep another stage's layer alive.
        kept = {id(layer) for layer in layers}
        for name, value in vars(self).items():
            if isinstance(value, Link) and id(value) not in kept:
                del stage.__dict__[name]
        if mode == "copy":
            stage = copy.deepcopy(stage)
        stage._deferred = stage._deferred.make(
            dict(enumerate(zip(stage._positions, stage._layers), start))
        )
        return stage

    def _check_divisible(self, start: int, end: int) -> None:
        what = f"divide({start}, {end}) of {type(self).__name__}"
        first, last = self.layer_range
        if not first <= start <= last or not first <= end <= last:
            raise IndexError(
                f"{what}: out of range. The positions go from {first} to {last}, and"
                f" a stage of layers a to b-1 is divide(a, b)."
            )
        if start >= end:
            raise IndexError(
                f"{what}: no layers. A stage needs at least one; with {last - first}"
                f" layers there can be at most {last - first} stages."
            )
        if self._params:
            raise TypeError(
                f"{what}: the parameters {sorted(self._params)} belong to the model"
                f" and to none of its layers. Put them into a layer."
            )
        if type(self).forward is not Divisible.forward:
            raise TypeError(
                f"{what}: {type(self).__name__}.forward replaces the pass through the"
                f" layers, so a part of them is no part of the model. Put what it"
                f" does into layers."
            )

    def forward(self, *x: Any) -> Any:
        """Passes ``x`` through the layers.

        Args:
            x: The inputs of the first layer: arrays or variables.

        Returns:
            What the last layer returns.

        Raises:
            RuntimeError: If there is no layer, or one that is not made yet.
            Exception: What a layer raises, with the layer's position in the
                undivided model as the attribute ``layer_position``. Functions in the
                graph have it as well, for errors in their backward.
        """
        if not self._layers:
            raise RuntimeError(f"{type(self).__name__} has no layers")
        if self._deferred.waiting:
            self._deferred.check(self._layers, type(self).__name__)
        first_calls = self._deferred.first_calls
        signed: set[chainer.FunctionNode] = set()
        for position, layer in enumerate(self._layers, self._start):
            try:
                inputs = x if isinstance(x, tuple) else (x,)
                if position in first_calls:
                    x = self._deferred.first_call(position, layer, inputs)
                else:
                    x = layer(*inputs)
            except Exception as error:
                # The outermost Divisible's position is the one plans speak of, so
                # a nested model's is overwritten on the way out.
                error.layer_position = position
                raise
            _sign(x, position, signed)
        return x

    # -- the list: chainer.Sequential's, by position ----------------------------

    def insert(self, i: int, layer: Layer) -> None:
        """Inserts a layer before position ``i``."""
        self._check_mutable()
        n = len(self._layers)
        if not -n <= i <= n:
            raise IndexError(f"insert({i}): {type(self).__name__} has {n} layers")
        self._layers.insert(i, _check_layer(layer))
        self._deferred.notice(layer)
        self._number_layers()

    def __setitem__(self, i: int, layer: Layer) -> None:
        self._check_mutable()
        self._layers[operator.index(i)] = _check_layer(layer)
        self._deferred.notice(layer)
        self._number_layers()

    def __delitem__(self, i: int | slice) -> None:
        self._check_mutable()
        del self._layers[i]
        self._number_layers()

    def clear(self) -> None:
        """Removes every layer."""
        del self[:]

    def __add__(self, other: chainer.Sequential) -> Divisible:
        if not isinstance(other, chainer.Sequential):
            return NotImplemented
        return Divisible(*self, *other)

    def flatten(self) -> Divisible:
        """Returns the layers with those of nested ``Sequential`` in their place."""
        flat = Divisible()
        for layer in self._layers:
            nested = isinstance(layer, chainer.Sequential)
            flat.extend(layer.flatten() if nested else [layer])
        return flat

    def copy(self, mode: str = "share") -> Divisible:
        """Copies the model, its class and positions kept.

        Args:
            mode (str): ``'share'``, ``'copy'`` or ``'init'``, as for
                :meth:`chainer.Link.copy`.
        """
        ret = Link.copy(self, mode)
        if mode == "share":
            # One copy per link, so that a repeated link stays one layer.
            copies = {id(link): link.copy(mode) for link in self.children()}
            ret._layers = [
                copies[id(layer)] if isinstance(layer, Link) else copy.copy(layer)
                for layer in self._layers
            ]
            ret._deferred = self._deferred.copied(copies)
            ret._name_links()
        return ret

    def _check_mutable(self) -> None:
        if self.is_stage:
            raise TypeError(
                f"the layers {self.layer_range} of a divided {type(self).__name__}"
                f" cannot be changed; change the model, then divide it"
            )

    def _number_layers(self) -> None:
        first: dict[int, int] = {}
        self._positions = [
            first.setdefault(id(layer), i) if isinstance(layer, Link) else i
            for i, layer in enumerate(self._layers)
        ]
        self._name_links()

    def _name_links(self) -> None:
        for position, link in self._positioned_children():
            link.name = str(position)

    # -- the link hierarchy: chainer.ChainList's, by position -------------------

    def _positioned_children(self) -> Iterator[tuple[int, Link]]:
        """Yields each link once, with the position that names it."""
        seen = set()
        for position, layer in zip(self._positions, self._layers):
            if isinstance(layer, Link) and position not in seen:
                seen.add(position)
                yield position, layer

    def children(self) -> Iterator[Link]:
        """Yields the layers that are links, each once."""
        for _, link in self._positioned_children():
            yield link

    def params(self, include_uninit: bool = True) -> Iterator[chainer.Parameter]:
        """Yields the parameters of all layers."""
        yield from Link.params(self, include_uninit)
        for link in self.children():
            yield from link.params(include_uninit)

    def namedparams(
        self, include_uninit: bool = True
    ) -> Iterator[tuple[str, chainer.Parameter]]:
        """Yields ``('/position/...', parameter)`` of all layers."""
        yield from Link.namedparams(self, include_uninit)
        for position, link in self._positioned_children():
            for path, param in link.namedparams(include_uninit):
                yield f"/{position}{path}", param

    def links(self, skipself: bool = False) -> Iterator[Link]:
        """Yields all links of the hierarchy."""
        if not skipself:
            yield self
        for link in self.children():
            yield from link.links()

    def namedlinks(self, skipself: bool = False) -> Iterator[tuple[str, Link]]:
        """Yields ``('/position/...', link)`` for all links of the hierarchy."""
        if not skipself:
            yield "/", self
        for position, link in self._positioned_children():
            yield f"/{position}", link
            for path, descendant in link.namedlinks(True):
                yield f"/{position}{path}", descendant

    def device_resident_accept(self, visitor: Any) -> None:
        """Lets ``visitor`` (``to_gpu`` and the like) see every layer."""
        Link.device_resident_accept(self, visitor)
        visit = operator.methodcaller("device_resident_accept", visitor)
        for link in self.children():
            self._deferred.do(visit, link)

    def copyparams(self, link: Divisible, copy_persistent: bool = True) -> None:
        """Copies parameters from a model with the same layers at these positions."""
        Link.copyparams(self, link, copy_persistent)
        for mine, other in self._pairs(link):
            mine.copyparams(other, copy_persistent)

    def addgrads(self, link: Divisible) -> None:
        """Adds the gradients of a model with the same layers at these positions."""
        Link.addgrads(self, link)
        for mine, other in self._pairs(link):
            mine.addgrads(other)

    def _pairs(self, other: Divisible) -> Iterator[tuple[Link, Link]]:
        theirs = dict(other._positioned_children())
        for position, mine in self._positioned_children():
            if position not in theirs:
                raise ValueError(
                    f"layer {position} ({type(mine).__name__}) is not in the model to"
                    f" copy from, which holds the layers {other.layer_range}"
                )
            yield mine, theirs[position]

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes every layer under its position."""
        Link.serialize(self, serializer)
        for position, link in self._positioned_children():
            self._deferred.serialize(link, serializer[str(position)])

    # -- copying and printing ---------------------------------------------------

    # chainer.Sequential refuses to be reduced with a lambda inside, which is right
    # for pickle and needless for copies.

    def __copy__(self) -> Divisible:
        ret = type(self).__new__(type(self))
        ret.__dict__.update(vars(self))
        ret._layers = list(self._layers)
        ret._positions = list(self._positions)
        return ret

    def __deepcopy__(self, memo: dict) -> Divisible:
        ret = type(self).__new__(type(self))
        memo[id(self)] = ret
        ret.__dict__.update(copy.deepcopy(vars(self), memo))
        return ret

    def __str__(self) -> str:
        lines = [
            f"  ({position}): {_describe(layer)},".replace("\n", "\n  ")
            for position, layer in enumerate(self._layers, self._start)
        ]
        body = "".join("\n" + line for line in lines)
        return (
            f"{type(self).__name__}({body}\n)" if body else f"{type(self).__name__}()"
        )

    __repr__ = __str__


def _sign(outputs: Any, position: int, signed: set[chainer.FunctionNode]) -> None:
    """Writes a layer's position on the functions that it added to the graph."""
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    found = [y.creator_node for y in outputs if isinstance(y, chainer.Variable)]
    while found:
        function = found.pop()
        if function is not None and function not in signed:
            signed.add(function)
            function.layer_position = position
            found.extend(x.creator_node for x in function.inputs)


def _check_layer(layer: Layer) -> Layer:
    if not callable(layer):
        raise TypeError(
            f"a layer is a link or a function, but this is not callable: {layer!r}"
        )
    return layer


def _describe(layer: Layer) -> str:
    """Text for a layer, the same in every process: no memory addresses."""
    try:
        text = getattr(layer, "__qualname__", None) or str(layer)
    except AttributeError:
        # Chainer's BatchNormalization(axis=...) has no text before it has a size.
        text = type(layer).__qualname__
    return re.sub(r" at 0x[0-9a-f]+", "", text)
