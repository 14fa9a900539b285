"""An input that is larger than memory: rows that are read when they are needed.

::

    LargeInput(np.memmap(...))               rows of a mapped file
    LargeInput(h5py.File(...)['x'])          rows of a dataset
    LargeInput(function, shape=, dtype=)     rows that a generator yields, from its
                                             beginning in each pass
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np

from divisible.number_lists import as_list
from divisible.records import shown


class LargeInput:
    """Rows of an input, such as samples, of which a segment is in memory at a time.

    Give it to a :class:`~divisible.streaming.StreamedInput` in place of an array.

    Args:
        source: Anything with ``shape``, ``dtype`` and slices of rows: a mapped file of
            NumPy, a dataset of h5py, an array. Or a function without arguments that
            returns an iterable, such as a generator, of arrays of some rows each. It is
            called in each pass, of the forward and of the backward, so it must yield
            the same rows each time.
        shape (tuple of int): Shape of all rows, for a function.
        dtype: Dtype of the rows, for a function.

    Attributes:
        shape (tuple of int): Shape of all rows together.
        dtype (numpy.dtype): Dtype of the source.

    Raises:
        TypeError: If ``source`` is neither of the two.
        ValueError: If a function comes without ``shape`` and ``dtype``, a source with
            them, or the source has no axes.

    Example:
        >>> def rows():
        ...     for i in range(4):
        ...         yield np.full((25, 3), i, np.float32)
        >>> large = LargeInput(rows, shape=(100, 3), dtype=np.float32)
        >>> parts = large.parts([(0, 30), (30, 100)])
        >>> len(large), [float(part[0, 0]) for part in parts]
        (100, [0.0, 1.0])
    """

    def __init__(
        self, source: Any, *, shape: Sequence[int] | None = None, dtype: Any = None
    ) -> None:
        is_array = all(hasattr(source, name) for name in ("shape", "dtype"))
        is_array = is_array and hasattr(source, "__getitem__")
        if not is_array and not callable(source):
            raise TypeError(
                f"source is {shown(source)}: give something with shape, dtype and"
                f" slices, such as a numpy.memmap, or a function that returns an"
                f" iterable of arrays"
            )
        if is_array and (shape is not None or dtype is not None):
            raise ValueError(
                "shape and dtype are for a function of rows; an array has its own"
            )
        if not is_array and (shape is None or dtype is None):
            raise ValueError("a function of rows needs shape= and dtype=")
        self._source, self._is_array = source, is_array
        self.shape = tuple(map(int, source.shape if is_array else as_list(shape)))
        self.dtype = np.dtype(source.dtype if is_array else dtype)
        if not self.shape:
            raise ValueError("an input of rows needs one axis at least")

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def parts(self, ranges: Iterable[tuple[int, int]]) -> Iterator[np.ndarray]:
        """Yields ranges of rows, which follow each other from the first row on.

        Args:
            ranges: For each range the first row and the one behind the last.

        Raises:
            ValueError: If the source yields other rows than its shape says.
        """
        if self._is_array:
            return (self._source[start:stop] for start, stop in ranges)
        return self._joined(ranges)

    def _joined(self, ranges: Iterable[tuple[int, int]]) -> Iterator[np.ndarray]:
        """Yields ranges of the rows that a function yields in pieces."""
        pieces = self._pieces(self._source)
        waiting: list[np.ndarray] = []
        for start, stop in ranges:
            n = stop - start
            while sum(map(len, waiting)) < n:
                piece = next(pieces, None)
                if piece is None:
                    n_rows = start + sum(map(len, waiting))
                    raise ValueError(
                        f"the function of rows yielded {n_rows} of {len(self)}: yield"
                        f" all in each pass"
                    )
                waiting.append(piece)
            rows = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            waiting = [rows[n:]] if len(rows) > n else []
            # Before the last rows are used.
            if stop == len(self) and (waiting or next(pieces, None) is not None):
                raise ValueError(
                    f"the function of rows yielded more than {len(self)}: give the"
                    f" shape that they have"
                )
            yield rows[:n]

    def _pieces(self, function: Callable[[], Iterable[Any]]) -> Iterator[np.ndarray]:
        for piece in function():
            array = np.asarray(piece)
            if array.shape[1:] != self.shape[1:] or array.ndim != self.ndim:
                raise ValueError(
                    f"the function of rows yielded an array of {array.shape}, but the"
                    f" input is of {self.shape}"
                )
            if len(array):
                yield array
