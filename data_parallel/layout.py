"""The places of the elements of arrays in the messages of an exchange.

Arrays are exchanged by *bucket*: a group of successive arrays. Arrays that are sent in
float32 are in its exact region. The others are in its coded region, in which each array
begins with a new block. A bucket is cut by lane, by node, and in chunks, between
blocks::

    coded region   [ array 0 ....... | array 2 ...... ]   exact region [ array 1 ]
    lane 0 of 2    [ ............ ]                                    [ ... ]
     node 1 of 2          [ ..... ]                                       [  ]
      chunk 0             [ ]                                             [  ]   a part

A *unit* is one chunk of one lane. Its *parts* are the elements that each of the lane's
replicas adds up.
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
        elements: Range of the array's elements.
        place: Range of the elements in the region of the part.
    """

    array: int
    elements: slice
    place: slice


class Part(NamedTuple):
    """The elements of a unit that one replica adds up.

    Attributes:
        coded: The segments that are coded; each begins at a multiple of the block.
        exact: The segments that are sent in float32.
        n_coded: The length of the coded region, including gaps between arrays.
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


class ExchangeUnit(NamedTuple):
    """One chunk of a bucket, restricted to one lane.

    Attributes:
        bucket: The number of the bucket.
        lane: The number of the lane.
        parts: The parts, by node.
    """

    bucket: int
    lane: int
    parts: tuple[Part, ...]


class Bucket(NamedTuple):
    """Arrays that are exchanged together.

    Attributes:
        number: Number of the bucket.
        arrays: Positions of the arrays.
        exact: Positions of the arrays that are sent in float32.
        units: Units in the order in which they begin.
    """

    number: int
    arrays: tuple[int, ...]
    exact: tuple[int, ...]
    units: tuple[ExchangeUnit, ...]


class Shape(NamedTuple):
    """Parameters of the cuts.

    Attributes:
        n_lanes: Number of replicas of a node that add up.
        n_nodes: Number of nodes.
        block: Number of elements that share a scale.
        bucket: Number of elements of a bucket, unless one array has more.
        chunk: Approximate largest number of elements of a chunk.
        minimum: Least number of elements of a bucket that is coded.
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
        sizes: Number of elements of each array.
        are_exact: For each array whether it is sent in float32 in any case.
        shape: Parameters of the cuts.

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
    """The layout of the last arrays, which is computed again for others.

    Args:
        shape: Parameters of the cuts.
        is_fp32: Whether all arrays are sent in float32.

    Attributes:
        shape: Parameters of the cuts; may be replaced.
        buckets: Buckets of the last arrays.
        summary: Lines of text that must be equal on all ranks.
    """

    def __init__(self, shape: Shape, is_fp32: bool) -> None:
        self.shape, self._is_fp32 = shape, is_fp32
        self._key: Any = None
        self.buckets: list[Bucket] = []
        self.summary: list[str] = []

    def fit(self, specs: Sequence[Spec]) -> bool:
        """Computes the layout of some arrays, and returns whether it is a new one."""
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
                units.append(ExchangeUnit(number, lane, tuple(parts)))
    return Bucket(number, tuple(arrays), tuple(exact), tuple(units))


class _Region:
    """Arrays one after the other, each of which begins with a new block."""

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
        """Yields the segments of arrays that lie in a range."""
        for array, start, stop in self._spans:
            low, high = max(start, some.start), min(stop, some.stop)
            if low < high:
                yield Segment(
                    array,
                    slice(low - start, high - start),
                    slice(low - some.start, high - some.start),
                )
