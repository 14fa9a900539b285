"""Where the elements of arrays lie in the messages of an exchange.

Arrays are exchanged by *bucket*: some that follow each other. Those that keep float32
on the wire are its exact region, the others its coded region, in which each begins with
a block of its own. A bucket is cut by lane, by node, and in chunks, between blocks::

    coded region   [ array 0 ....... | array 2 ...... ]   exact region [ array 1 ]
    lane 0 of 2    [ ............ ]                                    [ ... ]
     node 1 of 2          [ ..... ]                                       [  ]
      chunk 0             [ ]                                             [  ]   a part

A *unit* is what one lane does with one chunk; its *parts* are what the lane's replicas
each add up of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from data_parallel.arrays import Spec
from data_parallel.nodes import slices_of


class Segment(NamedTuple):
    """Elements of one array in a part.

    Attributes:
        array: The position of the array among those exchanged.
        elements: Which of its elements.
        place: Where they lie in the region of the part.
    """

    array: int
    elements: slice
    place: slice


class Part(NamedTuple):
    """The elements of a unit that one replica adds up.

    Attributes:
        coded: The segments that are coded; each begins at a multiple of the block.
        exact: The segments that travel in float32.
        n_coded: The length of the coded region, with what is empty between arrays.
        n_exact: The length of the exact region.
    """

    coded: tuple[Segment, ...]
    exact: tuple[Segment, ...]
    n_coded: int
    n_exact: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.coded or self.exact)


class Unit(NamedTuple):
    """One chunk of a bucket, as far as one lane has it.

    Attributes:
        bucket: The number of the bucket.
        lane: The number of the lane.
        parts: By node.
    """

    bucket: int
    lane: int
    parts: tuple[Part, ...]


class Bucket(NamedTuple):
    """Arrays that are exchanged together.

    Attributes:
        number: Of the bucket.
        arrays: Their positions.
        exact: Those of them that travel in float32.
        units: In the order in which they begin.
    """

    number: int
    arrays: tuple[int, ...]
    exact: tuple[int, ...]
    units: tuple[Unit, ...]


class Shape(NamedTuple):
    """How arrays are cut.

    Attributes:
        n_lanes: How many replicas of a node add up.
        n_nodes: How many nodes there are.
        block: How many elements have a scale.
        bucket: How many elements a bucket has, if not one array has more.
        chunk: How many elements a chunk has at most, nearly.
        minimum: From how many elements on a bucket is coded.
    """

    n_lanes: int
    n_nodes: int
    block: int
    bucket: int
    chunk: int
    minimum: int


def layout(
    sizes: Sequence[int], are_exact: Sequence[bool], shape: Shape
) -> list[Bucket]:
    """Returns the buckets of arrays, in the arrays' order.

    Args:
        sizes: Of the arrays, in elements.
        are_exact: Which of them travel in float32 in any case.
        shape: How they are cut.

    Example:
        >>> cut = Shape(n_lanes=1, n_nodes=2, block=16, bucket=50, chunk=99, minimum=0)
        >>> first, second = layout([40, 3, 64], [False, True, False], cut)
        >>> first.arrays, second.arrays
        ((0, 1), (2,))
        >>> first.units[0].parts[1].coded
        (Segment(array=0, elements=slice(16, 40, None), place=slice(0, 24, None)),)
    """
    return [
        _bucket(number, arrays, sizes, are_exact, shape)
        for number, arrays in enumerate(_buckets(sizes, shape.bucket))
    ]


class Layouts:
    """The layout of the last arrays, made anew for others.

    Args:
        shape: How arrays are cut.
        is_fp32: Whether all travel in float32.

    Attributes:
        shape: As given; may be replaced.
        buckets: Of the last arrays.
        summary: What of it must be the same on all ranks, line by line.
    """

    def __init__(self, shape: Shape, is_fp32: bool) -> None:
        self.shape, self._is_fp32 = shape, is_fp32
        self._key: Any = None
        self.buckets: list[Bucket] = []
        self.summary: list[str] = []

    def fit(self, specs: Sequence[Spec]) -> bool:
        """Makes the layout of some arrays, and returns whether it is a new one."""
        key = tuple(specs), self.shape
        if key == self._key:
            return False
        self._key = key
        are_exact = [spec.is_exempt or self._is_fp32 for spec in specs]
        self.buckets = layout([spec.size for spec in specs], are_exact, self.shape)
        minimum = f"minimum={self.shape.minimum}"
        self.summary = ["arrays to exchange", minimum, *map(str, specs)]
        return True


def _buckets(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    arrays: list[int] = []
    total = 0
    for array, size in enumerate(sizes):
        if arrays and total + size > most:
            yield arrays
            arrays, total = [], 0
        arrays.append(array)
        total += size
    if arrays:
        yield arrays


def _bucket(
    number: int,
    arrays: Sequence[int],
    sizes: Sequence[int],
    are_exact: Sequence[bool],
    shape: Shape,
) -> Bucket:
    coded = [array for array in arrays if not are_exact[array]]
    if sum(sizes[array] for array in coded) < shape.minimum:
        coded = []
    exact = [array for array in arrays if array not in set(coded)]
    of_coded = _Region(coded, sizes, shape.block)
    of_exact = _Region(exact, sizes, 1)
    n_chunks = max(1, -(-(of_coded.size + of_exact.size) // shape.chunk))
    units = []
    cut_coded = of_coded.cut(shape.n_lanes, shape.n_nodes, n_chunks)
    cut_exact = of_exact.cut(shape.n_lanes, shape.n_nodes, n_chunks)
    for chunk in range(n_chunks):
        for lane in range(shape.n_lanes):
            parts = []
            for node in range(shape.n_nodes):
                here, there = cut_coded[lane][node][chunk], cut_exact[lane][node][chunk]
                parts.append(
                    Part(
                        tuple(of_coded.segments(here)),
                        tuple(of_exact.segments(there)),
                        here.stop - here.start,
                        there.stop - there.start,
                    )
                )
            if not all(part.is_empty for part in parts):
                units.append(Unit(number, lane, tuple(parts)))
    return Bucket(number, tuple(arrays), tuple(exact), tuple(units))


class _Region:
    """Arrays one after the other, each beginning with a block of its own."""

    def __init__(self, arrays: Sequence[int], sizes: Sequence[int], block: int) -> None:
        self._block = block
        self._spans: list[tuple[int, int, int]] = []
        self.size = start = 0
        for array in arrays:
            self.size = start + sizes[array]
            self._spans.append((array, start, self.size))
            start += -(-sizes[array] // block) * block

    def cut(self, n_lanes: int, n_nodes: int, n_chunks: int) -> list[list[list[slice]]]:
        """Returns ranges of elements by lane, node and chunk."""
        return [
            [self._within(part, n_chunks) for part in self._within(of_lane, n_nodes)]
            for of_lane in self._within(slice(0, self.size), n_lanes)
        ]

    def _within(self, whole: slice, n_parts: int) -> list[slice]:
        return [
            slice(whole.start + part.start, whole.start + part.stop)
            for part in slices_of(whole.stop - whole.start, self._block, n_parts)
        ]

    def segments(self, some: slice) -> Iterator[Segment]:
        """Yields what of the arrays lies in a range."""
        for array, start, stop in self._spans:
            low, high = max(start, some.start), min(stop, some.stop)
            if low < high:
                yield Segment(
                    array,
                    slice(low - start, high - start),
                    slice(low - some.start, high - some.start),
                )
