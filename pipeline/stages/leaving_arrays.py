"""Takes the arrays out of a microbatch's graph or inputs, and puts them back.

::

    graph:  function --- node --- function          node, variable and function
                          |                          lose their arrays
              view a, view b of one buffer   -->   one array of bytes
                                                     (elsewhere meanwhile)
              view a, view b of a new one    <--

Arrays that share memory share it again. Arrays that others hold stay: parameters,
values computed from parameters alone, and values that links or other libraries keep. So
do the inputs of the model, which the caller holds. Small arrays stay as well, and so
does a small part of a larger array, which would not free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible.backward.graph_functions import functions_behind, weight_functions
from divisible.backward.tensors import leaves
from divisible.communication.signatures import Tensor
from divisible.planning.retained_arrays import (
    BufferSet,
    buffer_of,
    exact_arrays,
    is_rounded,
    kept_elsewhere,
)
from pipeline.stages.held import Graph, Inputs

#: Bytes below which a buffer stays in memory.
SMALLEST = 4096


class Leaving(NamedTuple):
    """The arrays that leave a graph or inputs.

    Attributes:
        rounds: Whether buffers of float32 that may be rounded come as float32, rather
            than as bytes.
        others: Whether buffers that may not be rounded leave as well.
    """

    rounds: bool = False
    others: bool = True


#: All arrays leave, as they are.
EVERYTHING = Leaving()


class Left(NamedTuple):
    """Buffers that were taken out of a graph or inputs, and the way to put them back.

    Attributes:
        buffers: An array with one dimension for each buffer, of bytes or of float32.
        come_back: Called with arrays of the same dtypes and sizes, returns the graph or
            the inputs.
    """

    buffers: list[np.ndarray]
    come_back: Callable[[list[np.ndarray]], Graph | Inputs]


def take_out(
    held: Graph | Inputs,
    links: Iterable[chainer.Link],
    leaving: Leaving = EVERYTHING,
    inputs_stay: bool = False,
) -> Left:
    """Takes the arrays out of a graph or inputs.

    Args:
        held: Graph or inputs of one microbatch, not usable until the arrays are back.
        links: Links of the layers; arrays in their attributes stay.
        leaving: The arrays that leave.
        inputs_stay: Whether the inputs of the first layer stay, because somebody else
            holds them.

    Returns:
        The buffers. The graph has no other reference to the arrays.
    """
    staying = _staying(links)
    if inputs_stay:
        staying |= _inputs(held)
    opened = _open_graph(held) if isinstance(held, Graph) else _open_inputs(held)
    staying |= opened.kept
    groups = []
    for group in _groups(opened.places, staying):
        group.is_float32 = leaving.rounds and group.may_be_rounded(opened.exact)
        if group.is_float32 or leaving.others:
            groups.append(group)
    buffers = [group.empty() for group in groups]
    # The exact arrays must not be held as well.
    close = opened.close

    def come_back(buffers: list[np.ndarray]) -> Graph | Inputs:
        for group, buffer in zip(groups, buffers):
            group.fill(buffer)
        return close()

    return Left(buffers, come_back)


class _Place(NamedTuple):
    """A reference to an array: its list or dictionary of attributes, and its key."""

    container: Any
    key: Any


class _Opened(NamedTuple):
    """A held graph, or held inputs, whose arrays may be missing.

    Attributes:
        places: The references to its arrays.
        exact: Arrays among them that must not be rounded.
        kept: Arrays among them that another library keeps anyway.
        close: Called when all arrays are back, returns the graph or the inputs.
    """

    places: list[_Place]
    exact: BufferSet
    kept: BufferSet
    close: Callable[[], Graph | Inputs]


class _View(NamedTuple):
    """An array without its memory."""

    place: _Place
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]


class _Group:
    """Places whose arrays share one buffer.

    Attributes:
        is_float32: Whether the buffer leaves as float32, rather than as bytes.
    """

    is_float32 = False

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

    def may_be_rounded(self, exact: BufferSet) -> bool:
        """Returns whether all arrays are of float32, and none of them is exact."""
        first = self._views[0].place
        return (
            all(is_rounded(view.dtype, self.n_bytes) for view in self._views)
            and not (self._start | self.n_bytes) % np.dtype(np.float32).itemsize
            and first.container[first.key] not in exact
        )

    def empty(self) -> np.ndarray:
        """Empties the places, and returns the buffer of their arrays."""
        first = self._views[0].place
        array = first.container[first.key]
        for view in self._views:
            view.place.container[view.place.key] = None
        dtype = np.dtype(np.float32 if self.is_float32 else np.uint8)
        return np.asarray(_Memory(buffer_of(array), self._start, self.n_bytes, dtype))

    def fill(self, buffer: np.ndarray) -> None:
        """Puts the arrays back, out of such a buffer."""
        for place, address, shape, dtype, strides in self._views:
            offset = address - self._start
            array = np.ndarray(shape, dtype, buffer, offset, strides)
            place.container[place.key] = array


class _Memory:
    """Memory by its address, with its owner."""

    def __init__(
        self, owner: np.ndarray, address: int, n_bytes: int, dtype: np.dtype
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {
            # Compiled loops take arrays that can be written to.
            "data": (address, False),
            "shape": (n_bytes // dtype.itemsize,),
            "typestr": dtype.str,
            "version": 3,
        }


def _open_graph(graph: Graph) -> _Opened:
    places, exact, kept, tuples = _places(graph)

    def close() -> Graph:
        for attributes, name, items in tuples:
            attributes[name] = tuple(items)
        return graph

    return _Opened(places, exact, kept, close)


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
    return _Opened(places, BufferSet(), BufferSet(), close)


def _places(
    graph: Graph,
) -> tuple[list[_Place], BufferSet, BufferSet, list[tuple[dict, str, list]]]:
    """Finds the references to arrays.

    Returns:
        The references; the arrays that must not be rounded; those that another library
        keeps; and the tuples that are lists meanwhile.
    """
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
    exact, kept, tuples = BufferSet(), BufferSet(), []
    weights = weight_functions(outputs)
    for function in functions_behind(outputs):
        if function in weights:
            continue
        for array in filter(_can_leave, exact_arrays(function)):
            exact.add(array)
        for array in kept_elsewhere(function):
            kept.add(array)
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
    return places, exact, kept, tuples


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


def _inputs(held: Graph | Inputs) -> BufferSet:
    """Returns the arrays of the inputs of a graph's first layer, or of held inputs."""
    arrays = (getattr(x, "array", x) for x in leaves(held.inputs))
    return BufferSet(filter(_can_leave, arrays))


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
