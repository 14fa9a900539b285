"""Activations as matrices whose rows or columns belong to one channel each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chainer_kernels import threads
from chainer_kernels.functions import channels

ROWS, COLUMNS = "rows", "columns"


class ChannelView:
    """A view of arrays of one shape as matrices, the same as in ``channels``.

    Args:
        shape: Shape of the arrays around the axis of channels: (before, C, behind).

    Attributes:
        kind: ``'rows'`` where each row belongs to a channel, ``'columns'`` where each
            column does.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._before, self._channels, self._behind = shape
        self.kind = ROWS if self._behind > 1 else COLUMNS

    def matrices(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns arrays of shape (before, C, behind) as matrices for loops."""
        if self.kind == ROWS:
            return [a.reshape(-1, self._behind) for a in arrays]
        return channels.columns(list(arrays), 1)[0]

    def parameters(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns values per channel as values per row or column of the matrices."""
        each = channels.in_groups(self._channels, *arrays)
        if self.kind == ROWS:
            return [channels.by_row(a, self._before) for a in each]
        return [channels.repeated(a, self._fold).reshape(-1) for a in each]

    def run(
        self,
        loop: Callable,
        matrices: Sequence[np.ndarray],
        parameters: Sequence[np.ndarray],
    ) -> None:
        """Runs a loop over matrices."""
        if self.kind == ROWS:
            threads.run_slices(loop, [*matrices, *parameters])
        else:
            threads.run_slices(loop, matrices, *parameters)

    def sums(
        self,
        loop: Callable,
        matrices: Sequence[np.ndarray],
        parameters: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs a loop that computes two sums for each channel.

        Returns:
            The two sums for each channel in float64. Additions have the same order as
            in :func:`channels.products`.
        """
        x = matrices[0]
        if self.kind == ROWS:
            found = np.empty((2, len(x)), "f")
            threads.run_slices(loop, [*matrices, *parameters, *found])
        else:
            starts, _ = channels.row_blocks(len(x), 1, x.shape[1])
            n_blocks = len(starts) - 1
            found = np.empty((2, n_blocks, x.shape[1]), "f")
            threads.run_ranges(
                loop,
                n_blocks,
                *matrices,
                *parameters,
                starts,
                *found,
                size=2 * x.size // n_blocks,
            )
        first, second = found.reshape(2, 1, -1, self._channels).sum(2, dtype="d")
        return first, second

    @property
    def _fold(self) -> int:
        shape = self._before, self._channels, 1
        return channels.columns([np.empty(shape, np.bool_)], 1)[1]
