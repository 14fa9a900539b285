"""A list of layers, each named by a position that does not change."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

import chainer
from chainer import Link

from divisible.deferred.layers import DeferredLayers
from divisible.deferred.postponed import follow
from divisible.layer_texts import describe
from divisible.transposes import Transposes

Layer = Callable[..., Any]


class LayerList(chainer.Sequential):
    """A Chainer link whose children are layers, under their positions.

    :class:`chainer.Sequential` names its children by the order in which they came.
    Here a layer's name is its first position in the undivided model. The name is used
    in paths of parameters and links, in files, and in print.
    """

    #: Whether layers cast their inputs, so that a pipeline gives them as they are.
    casts_inputs: bool = False
    #: The position of the first layer in the undivided model.
    _start: int = 0
    # For each link, the position that names it: its first position in the undivided
    # model. Link.name would not do, because another container of the link overwrites
    # it.
    _positions: dict[Link, int]
    # For each layer, whether a pipeline computes its forward again for its backward.
    _recomputed: list[bool]
    # For each layer its text when it came into the list. A link that gets its sizes in
    # its first call has another text afterwards, and is still the same.
    _texts: list[str]
    # On a stage, paths of parameters that its layers share with layers before it. Keys
    # are the paths by these layers, values the paths in the model.
    _tied_paths: Mapping[str, str]
    _transposes: Transposes
    _deferred: DeferredLayers

    def __new__(cls, *args: Any, **kwargs: Any) -> LayerList:
        """Prepares the empty list, so that a subclass may append at once."""
        self = super().__new__(cls)
        chainer.Sequential.__init__(self)
        self._positions, self._recomputed, self._texts = {}, [], []
        self._tied_paths, self._transposes = {}, Transposes()
        self._deferred = DeferredLayers()
        return self

    def __init__(self, *layers: Layer) -> None:
        for layer in layers:
            self.append(layer)

    def append(self, layer: Layer, recompute: bool = False) -> None:
        """Appends a layer.

        Args:
            layer: A link or a function.
            recompute (bool): Whether a pipeline drops the layer's activations after the
                forward, and computes them again for the backward. Neighbouring layers
                with this mark are recomputed together, from the input of the first one,
                as a part of their backward. This saves memory and costs another
                forward. Only arrays and variables may pass the ends of marked layers.
                Side effects of a recomputed layer happen twice.
        """
        self.insert(len(self), layer, recompute)

    def extend(self, sequential: Iterable[Layer]) -> None:
        """Appends layers, with their marks if they come from a model.

        Raises:
            TypeError: If they come from a model with transposed ties, whose positions
                are fixed.
        """
        if isinstance(sequential, LayerList):
            sequential._check_positions_free()
        marks = getattr(sequential, "_recomputed", None)
        for i, layer in enumerate(list(sequential)):
            self.append(layer, recompute=marks is not None and marks[i])

    def insert(self, i: int, layer: Layer, recompute: bool = False) -> None:
        """Inserts a layer before position ``i``; see :meth:`append`."""
        self._check_mutable()
        n = len(self._layers)
        if not -n <= i <= n:
            raise IndexError(f"insert({i}): {type(self).__name__} has {n} layers")
        self._layers.insert(i, _check_layer(layer))
        self._recomputed.insert(i, bool(recompute))
        self._texts.insert(i, describe(layer))
        self._deferred.add(layer)
        if i == n:
            # No other layer moves, so a model of many layers is built quickly.
            self._number(layer, n)
        else:
            self._number_layers()

    def __setitem__(self, i: int, layer: Layer) -> None:
        self._check_mutable()
        self._layers[operator.index(i)] = _check_layer(layer)
        self._texts[operator.index(i)] = describe(layer)
        self._deferred.add(layer)
        self._number_layers()

    def __delitem__(self, i: int | slice) -> None:
        self._check_mutable()
        del self._layers[i]
        del self._recomputed[i]
        del self._texts[i]
        self._number_layers()

    def clear(self) -> None:
        """Removes every layer."""
        del self[:]

    def copy(self, mode: str = "share") -> LayerList:
        """Copies the model with its class and positions.

        Args:
            mode (str): ``'share'``, ``'copy'`` or ``'init'``, as for
                :meth:`chainer.Link.copy`.
        """
        ret = Link.copy(self, mode)
        if mode == "share":
            # One copy per link, so that a repeated link stays one layer.
            copies = {id(link): link.copy(mode) for link in self.children()}
            # And one copy per parameter.
            params: dict[int, chainer.Parameter] = {}
            for link in self.children():
                for old, new in zip(link.links(), copies[id(link)].links()):
                    for name in old._params:
                        param = vars(new)[name]
                        vars(new)[name] = params.setdefault(id(vars(old)[name]), param)
            ret._layers = [
                copies[id(layer)] if isinstance(layer, Link) else copy.copy(layer)
                for layer in self._layers
            ]
            ret._positions = {}
            for link, position in self._positions.items():
                copied = copies[id(link)]
                follow(link, copied)
                ret._number(copied, position)
            ret._deferred = self._deferred.copied()
        return ret

    def __iadd__(self, other: Iterable[Layer]) -> LayerList:
        self.extend(other)
        return self

    def _check_mutable(self) -> None:
        """Raises an error if layers cannot be changed."""

    def _check_positions_free(self) -> None:
        """Raises an error if layers cannot be used elsewhere at other positions."""
        if self._transposes:
            raise TypeError(
                f"{type(self).__name__} has tied layers, whose positions are fixed:"
                f" change the list first, then tie"
            )

    def describe_anew(self) -> None:
        """Updates the text of each layer, because layers of a copy have other sizes.

        The layers keep their positions, names and ties.
        """
        self._texts = [describe(layer) for layer in self._layers]

    def dissolve_transposes(self, links: Iterable[Link]) -> None:
        """Gives each link that uses parameters transposed the transposes as its own.

        Args:
            links: Links in layers of this list or of others.
        """
        for layer, position in self._positions.items():
            self._transposes = self._transposes.dissolved(layer, position, links)

    def _replace_layers(self, layers: Iterable[Layer]) -> None:
        """Replaces all layers, also those that are attributes beside the list.

        Args:
            layers: The new layers. There are as many as before, at the same positions,
                and each link is replaced by one link.
        """
        before, self._layers = self._layers, list(layers)
        new = {id(old): layer for old, layer in zip(before, self._layers)}
        self._positions = {
            new[id(link)]: position for link, position in self._positions.items()
        }
        for name, value in vars(self).items():
            if isinstance(value, Link):
                vars(self)[name] = new.get(id(value), value)

    def _number_layers(self) -> None:
        self._positions = {}
        for position, layer in enumerate(self._layers):
            self._number(layer, position)

    def _number(self, layer: Layer, position: int) -> None:
        """Names a link by its position, unless it has a name already."""
        if isinstance(layer, Link):
            layer.name = str(self._positions.setdefault(layer, position))

    def _first_positions(self) -> list[int]:
        """Returns for each layer its first position."""
        return [
            self._positions[layer] if isinstance(layer, Link) else position
            for position, layer in enumerate(self._layers, self._start)
        ]

    def children(self) -> Iterator[Link]:
        """Yields the layers that are links, each once."""
        yield from self._positions

    def params(self, include_uninit: bool = True) -> Iterator[chainer.Parameter]:
        """Yields the parameters of all layers, each once."""
        for _, param in self.namedparams(include_uninit):
            yield param

    @property
    def layer_range(self) -> tuple[int, int]:
        """``(start, end)`` in the undivided model, half-open."""
        return self._start, self._start + len(self._layers)

    def namedparams(
        self, include_uninit: bool = True
    ) -> Iterator[tuple[str, chainer.Parameter]]:
        """Yields ``('/position/...', parameter)`` of all layers, each parameter once.

        The path of a shared parameter is the one in the first layer that uses it.
        """
        yield from Link.namedparams(self, include_uninit)
        seen: set[int] = set()
        for link, position in self._positions.items():
            for path, param in link.namedparams(include_uninit):
                if id(param) not in seen:
                    seen.add(id(param))
                    path = f"/{position}{path}"
                    yield self._tied_paths.get(path, path), param

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
        for link, position in self._positions.items():
            yield f"/{position}", link
            for path, descendant in link.namedlinks(True):
                yield f"/{position}{path}", descendant

    def device_resident_accept(self, visitor: Any) -> None:
        """Passes ``visitor`` (``to_gpu`` and similar ones) to every layer."""
        Link.device_resident_accept(self, visitor)
        visit = operator.methodcaller("device_resident_accept", visitor)
        for link in self.children():
            self._deferred.do(visit, link)

    def copyparams(self, link: LayerList, copy_persistent: bool = True) -> None:
        """Copies parameters from a model with the same layers at these positions."""
        Link.copyparams(self, link, copy_persistent)
        theirs = {position: link for link, position in link._positions.items()}
        for mine, position in self._positions.items():
            if position not in theirs:
                raise ValueError(
                    f"layer {position} ({type(mine).__name__}) is not in the model to"
                    f" copy from, which holds the layers {link.layer_range}"
                )
            mine.copyparams(theirs[position], copy_persistent)

    def addgrads(self, link: LayerList) -> None:
        """Adds the gradients of a model with the same layers at these positions."""
        theirs = dict(link.namedparams())
        # Going through layers would count a shared parameter several times.
        for path, param in self.namedparams():
            if path not in theirs:
                raise ValueError(
                    f"{path} is not in the model to add from, which holds the layers"
                    f" {link.layer_range}"
                )
            param.addgrad(theirs[path])

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Loads or saves every layer under its position."""
        Link.serialize(self, serializer)
        if not (self._deferred.waiting or self._transposes.paths):
            for link, position in self._positions.items():
                link.serialize(serializer[str(position)])
            return
        for link, position in self._positions.items():
            serialize = functools.partial(self._transposes.serialize, position=position)
            self._deferred.serialize(link, serialize, serializer[str(position)])

    def await_first_calls(self) -> None:
        """Gives keys to layers that lost their sizes, so that they draw as at first."""
        firsts = zip(self._first_positions(), self._layers)
        self._deferred.await_first_calls(dict(enumerate(firsts, self._start)))

    # chainer.Sequential cannot be reduced with a lambda in it, which is right for
    # pickle, but not needed for copies.

    def __copy__(self) -> LayerList:
        ret = type(self).__new__(type(self))
        ret.__dict__.update(vars(self))
        ret._layers = list(self._layers)
        ret._positions = dict(self._positions)
        ret._recomputed = list(self._recomputed)
        ret._texts = list(self._texts)
        return ret

    def __deepcopy__(self, memo: dict) -> LayerList:
        ret = type(self).__new__(type(self))
        memo[id(self)] = ret
        ret.__dict__.update(copy.deepcopy(vars(self), memo))
        for link, copied in zip(self._positions, ret._positions):
            follow(link, copied)
        return ret

    def _part(self, start: int, end: int) -> LayerList:
        """Returns a copy with some of the layers, which keep their positions."""
        chosen = slice(start - self._start, end - self._start)
        ret = copy.copy(self)
        ret._start = start
        ret._layers = self._layers[chosen]
        ret._positions = {
            layer: self._positions[layer]
            for layer in ret._layers
            if isinstance(layer, Link)
        }
        ret._recomputed = self._recomputed[chosen]
        ret._texts = self._texts[chosen]
        return ret

    def __str__(self) -> str:
        lines = [
            f"  ({position}): {describe(layer)},".replace("\n", "\n  ")
            for position, layer in enumerate(self._layers, self._start)
        ]
        body = "".join("\n" + line for line in lines)
        return (
            f"{type(self).__name__}({body}\n)" if body else f"{type(self).__name__}()"
        )

    __repr__ = __str__


def _check_layer(layer: Layer) -> Layer:
    if not callable(layer):
        raise TypeError(
            f"a layer is a link or a function, but this is not callable: {layer!r}"
        )
    return layer
