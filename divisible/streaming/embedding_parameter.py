"""The weights of an embedding in files, of which a minibatch needs some rows.

::

                   forward         backward            update
    rows of x      W read          gW added to         all read, W and state written
    other rows                     stay zero           the same, if the rule has a state

The gradient's file is zero except in the rows that the last minibatch had. These rows
are recorded, and set to zero before the next minibatch. Plain gradient descent changes
no row without a gradient; momentum does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from divisible.streaming import updates
from divisible.streaming.mapped import MappedArray
from divisible.streaming.parameter import ARRAY, GRADIENT, StreamedParameter

# Number of rows without a gradient that are read, to find gradients from a hook.
_N_PROBES = 16


class EmbeddingParameter(StreamedParameter):
    """A :class:`StreamedParameter` with a gradient in some rows.

    Args:
        arguments: See :class:`StreamedParameter`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Rows with a gradient, in ascending order. The rest of the file is zero,
        self._rows = np.empty(0, np.int64)
        # unless other code has written to any row.
        self._is_dense = False

    #: An early update would save little: few rows of the gradient are written.
    can_be_updated_early = False

    def visiting(
        self, rows: np.ndarray, written: set[str], read: set[str] = frozenset()
    ) -> Iterator[slice]:
        """Yields rows by segments, which are fetched ahead.

        Args:
            rows: Rows in ascending order, with repetitions or without.
            written: Names of the files that are written to.
            read: Names of the files that are only read.

        Yields:
            A slice of ``rows``, which is not empty.
        """
        self.check_usable()
        files = {self.file(name): name in written for name in (*read, *written)}
        segments = list(self.segments())
        ends = np.searchsorted(rows, [stop for _, stop in segments])
        waiting = [
            (segment, slice(first, last))
            for segment, first, last in zip(segments, [0, *ends], ends)
            if first < last
        ]
        for _, part in waiting[:1]:
            self._fetch(rows[part], files)
        for number, (segment, part) in enumerate(waiting):
            for _, following in waiting[number + 1 : number + 2]:
                self._fetch(rows[following], files)
            yield part
            for file, is_written in files.items():
                file.release(*segment, is_written)

    @staticmethod
    def _fetch(rows: np.ndarray, files: Iterable[MappedArray]) -> None:
        for first, last in _runs(rows):
            for file in files:
                file.prefetch(first, last)

    def clear(self, gradient: np.ndarray) -> None:
        """Sets a gradient to zero, where it is not zero already."""
        if not self.is_file(GRADIENT, gradient):
            gradient[...] = 0
        elif self._is_dense:
            for start, stop in self.passing({GRADIENT}):
                gradient[start:stop] = 0
        else:
            for part in self.visiting(self._rows, {GRADIENT}):
                gradient[self._rows[part]] = 0
        self._rows, self._is_dense = self._rows[:0], False

    def zero_gradient(self) -> None:
        """Sets the gradient, in its file, to zero; optimizers then find no gradient."""
        self.grad = self.new_gradient()
        self.clear(self.grad)

    def note_rows(self, rows: np.ndarray) -> None:
        """Records rows that have a gradient now."""
        self._rows = np.union1d(self._rows, rows)

    def note_gradient(self) -> None:
        """Records that other code has written to the gradient, in any row."""
        super().note_gradient()
        self._is_dense = True

    def _update(self, factor: float | None) -> None:
        rule = self.update_rule
        is_of_rows = (
            rule is not None
            and rule.enabled
            and self.is_file(GRADIENT, self.grad)
            and not self._has_others()
            and updates.leaves_others(rule)
        )
        if not is_of_rows:
            super()._update(factor)
            if rule is not None and self._shows_gradient(rule, factor):
                self._is_dense = True
            return
        states = updates.states_of(rule, self)
        rows = self._rows
        parts = self.visiting(rows, {ARRAY}, {GRADIENT})
        numbers = (rows[part] for part in parts)
        updates.update(rule, self, states, numbers, *self._gradient(factor))

    def _has_others(self) -> bool:
        """Returns whether rows have a gradient that no sample caused, but a hook."""
        n_rows = len(self.grad)
        probes = np.unique(np.linspace(0, n_rows - 1, _N_PROBES).astype(np.int64))
        probes = np.setdiff1d(probes, self._rows)
        self._is_dense = self._is_dense or bool(self.grad[probes].any())
        return self._is_dense


def _runs(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields the ends of runs of adjacent rows: the first, and the one behind the last.

    Example:
        >>> list(_runs(np.array([2, 3, 3, 4, 9])))
        [(2, 5), (9, 10)]
    """
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    firsts = rows[np.concatenate([[0], breaks])]
    lasts = rows[np.concatenate([breaks - 1, [len(rows) - 1]])]
    for first, last in zip(firsts.tolist(), lasts.tolist()):
        yield first, last + 1
