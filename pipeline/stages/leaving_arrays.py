"""Takes the arrays out of a microbatch's graph or inputs, and puts them back.

::

    graph:  function --- node --- function          node, variable and function
                          |                          lose their arrays
              view a, view b of one buffer   -->   one array of bytes
                                                     (elsewhere meanwhile)
              view a, view b of a new one    <--

Arrays that share memory share it again. Arrays that others hold stay: parameters,
values computed from parameters alone, and values that links keep. Small arrays stay as
well, and so does a small part of a larger array, which would not free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible.backward.graph_walk import functions_behind, weight_functions
from divisible.backward.tensors import leaves
from divisible.communication.signatures import Tensor
from divisible.planning.retained_arrays import BufferSet, buffer_of
from pipeline.stages.held import Graph, Inputs

#: Bytes below which a buffer stays in memory.
SMALLEST = 4096


class Left(NamedTuple):
    """Bytes that were taken out of memory, and the way to put them back.

    Attributes:
        buffers: One array of bytes for each buffer.
        come_back: Called with arrays of the same bytes, returns the graph or the
            inputs.
    """

    buffers: list[np.ndarray]
    come_back: Callable[[list[np.ndarray]], Graph | Inputs]


def take_out(held: Graph | Inputs, links: Iterable[chainer.Link]) -> Left:
    """Takes the arrays out of a graph or inputs.

    Args:
        held: Graph or inputs of one microbatch, not usable until the arrays are back.
        links: Links of the layers; arrays in their attributes stay.

    Returns:
        The bytes. The graph has no other reference to the arrays.
    """
    opened = _open_graph(held) if isinstance(held, Graph) else _open_inputs(held)
    groups = list(_groups(opened.places, _staying(links)))
    buffers = [group.empty() for group in groups]

    def come_back(buffers: list[np.ndarray]) -> Graph | Inputs:
        for group, buffer in zip(groups, buffers):
            group.fill(buffer)
        return opened.close()

    return Left(buffers, come_back)


class _Place(NamedTuple):
    """A reference to an array: its list or dictionary of attributes, and its key."""

    container: Any
    key: Any


class _Opened(NamedTuple):
    """A held graph, or held inputs, whose arrays may be missing.

    Attributes:
        places: The references to its arrays.
        close: Called when all arrays are back, returns the graph or the inputs.
    """

    places: list[_Place]
    close: Callable[[], Graph | Inputs]


class _View(NamedTuple):
    """An array without its memory."""

    place: _Place
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]


class _Group:
    """Places whose arrays share one buffer."""

    def __init__(self, places: list[_Place]) -> None:
        arrays = [place.container[place.key] for place in places]
        bounds = [_bounds(array) for array in arrays]
        self._start = min(low for low, _ in bounds)
        self.n_bytes = max(high for _, high in bounds) - self._start
        low, high = _bounds(buffer_of(arrays[0]))
        self.is_most_of_buffer = 2 * self.n_bytes > high - low
        self._views = [
            _View(place, array.ctypes.data, array.shape, array.dtype, array.strides)
            for place, array in zip(places, arrays)
        ]

    def empty(self) -> np.ndarray:
        """Empties the places, and returns the bytes of their arrays."""
        first = self._views[0].place
        array = first.container[first.key]
        for view in self._views:
            view.place.container[view.place.key] = None
        return np.asarray(_Bytes(buffer_of(array), self._start, self.n_bytes))

    def fill(self, buffer: np.ndarray) -> None:
        """Puts the arrays back, out of a buffer with these bytes."""
        for place, address, shape, dtype, strides in self._views:
            offset = address - self._start
            array = np.ndarray(shape, dtype, buffer, offset, strides)
            place.container[place.key] = array


class _Bytes:
    """Memory by its address, with its owner."""

    def __init__(self, owner: np.ndarray, address: int, n_bytes: int) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (n_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _open_graph(graph: Graph) -> _Opened:
    places, tuples = _places(graph)

    def close() -> Graph:
        for attributes, name, items in tuples:
            attributes[name] = tuple(items)
        return graph

    return _Opened(places, close)


def _open_inputs(held: Inputs) -> _Opened:
    tensors = [list(held.inputs), *map(list, held.skipped.values())]
    arrays = [[getattr(x, "array", None) for x in each] for each in tensors]
    # Values between segments of a stage need not be tensors; others stay.
    rest = [
        [x._replace(array=None) if isinstance(x, Tensor) else x for x in each]
        for each in tensors
    ]
    # The inputs themselves hold their arrays, so only their other parts are kept.
    names, persistents = list(held.skipped), held.persistents

    def close() -> Inputs:
        inputs, *skipped = (
            tuple(
                x._replace(array=array) if isinstance(x, Tensor) else x
                for x, array in zip(*each)
            )
            for each in zip(rest, arrays)
        )
        return Inputs(inputs, dict(zip(names, skipped)), persistents)

    places = [_Place(each, i) for each in arrays for i in range(len(each))]
    return _Opened(places, close)


def _places(graph: Graph) -> tuple[list[_Place], list[tuple[dict, str, list]]]:
    """Returns the references to arrays, and the tuples that are lists meanwhile."""
    ends = [graph.inputs, graph.outputs]
    ends += [*graph.skipped.values(), *graph.handed_over.values()]
    variables = [x for x in leaves(ends) if isinstance(x, chainer.Variable)]
    places = [_Place(x._data, 0) for x in variables]
    nodes = {id(x.node): x.node for x in variables}
    outputs = [
        x
        for x in leaves([graph.outputs, *graph.handed_over.values()])
        if isinstance(x, chainer.Variable)
    ]
    tuples: list[tuple[dict, str, list]] = []
    weights = weight_functions(outputs)
    for function in functions_behind(outputs):
        if function in weights:
            continue
        ends_of_function = [*function.inputs, *(y() for y in function.outputs)]
        nodes.update((id(node), node) for node in ends_of_function if node is not None)
        places += _attributes(function, tuples)
        if isinstance(function, chainer.function.FunctionAdapter):
            places += _attributes(function.function, tuples)
    places += [
        _Place(vars(node), "_data")
        for node in nodes.values()
        if node.creator_node not in weights and "_data" in vars(node)
    ]
    return places, tuples


def _attributes(
    function: Any, tuples: list[tuple[dict, str, list]]
) -> Iterator[_Place]:
    attributes = vars(function)
    for name, value in attributes.items():
        if type(value) is tuple and any(map(_can_leave, value)):
            items = list(value)
            tuples.append((attributes, name, items))
            attributes[name] = items
            value = items
        if type(value) is list:
            yield from (_Place(value, i) for i in range(len(value)))
        else:
            yield _Place(attributes, name)


def _can_leave(value: Any) -> bool:
    return type(value) is np.ndarray and value.size > 0 and not value.dtype.hasobject


def _groups(places: Iterable[_Place], staying: BufferSet) -> Iterator[_Group]:
    found: dict[int, list[_Place]] = {}
    for place in places:
        array = place.container[place.key]
        if _can_leave(array) and array not in staying:
            found.setdefault(id(buffer_of(array)), []).append(place)
    for each in found.values():
        group = _Group(each)
        if group.n_bytes >= SMALLEST and group.is_most_of_buffer:
            yield group


def _staying(links: Iterable[chainer.Link]) -> BufferSet:
    staying = BufferSet()
    for link in links:
        for value in vars(link).values():
            value = getattr(value, "array", value)
            if isinstance(value, np.ndarray):
                staying.add(value)
    return staying


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """Returns the address of an array's first byte, and the one behind its last."""
    low = array.ctypes.data
    high = low + array.itemsize
    for length, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high
