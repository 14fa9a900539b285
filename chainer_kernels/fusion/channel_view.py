"""Activations as matrices of which each row, or each column, is a channel's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chainer_kernels import threads
from chainer_kernels.functions import channels

ROWS, COLUMNS = "rows", "columns"


class ChannelView:
    """The view in which loops see arrays of one shape, as those of ``channels`` do.

    Args:
        shape: Of the arrays around the axis of the channels: (before, C, behind).

    Attributes:
        kind: ``'rows'`` or ``'columns'``.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._before, self._channels, self._behind = shape
        self.kind = ROWS if self._behind > 1 else COLUMNS

    def matrices(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns (before, C, behind) as loops see them."""
        if self.kind == ROWS:
            return [a.reshape(-1, self._behind) for a in arrays]
        return channels.columns(list(arrays), 1)[0]

    def parameters(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns arrays of a number for each channel, for each row or each column."""
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
        """Runs a loop that adds up two numbers for each channel.

        Returns:
            The sums of channels in float64, added up as :func:`channels.products` does.
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
