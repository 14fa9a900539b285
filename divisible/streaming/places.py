"""Places of a file that are used in turn by many objects.

::

    size  0                                        n
          | in use | free | in use |     free     |
    give back the second   -->  | in use |  free  |      neighbours are joined
"""

from __future__ import annotations

from collections.abc import Callable


class Places:
    """The used and the free places of a file.

    Attributes:
        size (int): Bytes of the file.

    Example:
        >>> places = Places()
        >>> first, second = places.take(100), places.take(50)
        >>> first, second, places.size
        (0, 100, 150)
        >>> places.give_back(first, 100)
        >>> places.give_back(second, 50)
        >>> places.take(200), places.size
        (0, 200)
    """

    def __init__(self) -> None:
        self.size = 0
        # Pairs of the first byte and the one behind the last, in ascending order.
        self._free: list[tuple[int, int]] = []

    def take(
        self, n_bytes: int, grow: Callable[[int, int], object] | None = None
    ) -> int:
        """Reserves the smallest free place that is enough, and returns its first byte.

        Args:
            n_bytes (int): Bytes of the place.
            grow: Function that is called with the old and the new size before the file
                gets larger. If it raises an error, nothing has changed.
        """
        fitting = [
            (end - start, start) for start, end in self._free if end - start >= n_bytes
        ]
        if fitting:
            n_free, start = min(fitting)
            self._free.remove((start, start + n_free))
        else:
            is_last_free = bool(self._free) and self._free[-1][1] == self.size
            start = self._free[-1][0] if is_last_free else self.size
            if grow is not None:
                grow(self.size, start + n_bytes)
            if is_last_free:
                self._free.pop()
            n_free, self.size = n_bytes, start + n_bytes
        if n_free > n_bytes:
            self._add(start + n_bytes, start + n_free)
        return start

    def give_back(self, start: int, n_bytes: int) -> None:
        """Frees a place.

        Args:
            start (int): The first byte, as returned by :meth:`take`.
            n_bytes (int): Bytes of the place, as given to :meth:`take`.
        """
        if n_bytes:
            self._add(start, start + n_bytes)

    def _add(self, start: int, end: int) -> None:
        """Adds a free place, joined with its neighbours."""
        before = [place for place in self._free if place[1] < start]
        behind = [place for place in self._free if place[0] > end]
        touching = self._free[len(before) : len(self._free) - len(behind)]
        start = min([start, *(first for first, _ in touching)])
        end = max([end, *(last for _, last in touching)])
        self._free = [*before, (start, end), *behind]
