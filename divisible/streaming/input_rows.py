"""The arithmetic of an embedding on some rows of ids, as that of other layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from chainer_kernels.contributions import Scratch
from divisible.streaming.products import Outputs


class Lookup(NamedTuple):
    """The arithmetic of ``L.EmbedID``: x (N, ...) of ids, W (n_rows, n_units).

    Attributes:
        ignored: An id without a row, or ``None``.
    """

    ignored: int | None

    def output_shape(self, x: np.ndarray, W: np.ndarray) -> tuple[int, ...]:
        """Returns the shape of the whole output."""
        return (*x.shape, W.shape[1])

    def forward(self, x: np.ndarray, W: np.ndarray, b: Any, dtype: str) -> Outputs:
        """Returns the rows of some ids.

        Raises:
            ValueError: If an id has no row.
        """
        is_ignored = np.zeros(x.shape, bool)
        if self.ignored is not None:
            is_ignored = x == self.ignored
        wrong = x[((x < 0) | (x >= len(W))) & ~is_ignored]
        if wrong.size:
            raise ValueError(
                f"the id {wrong[0]} has no row in an embedding of {len(W)} rows: give"
                f" ids from 0 to {len(W) - 1}"
                + ("" if self.ignored is None else f", or {self.ignored} for nothing")
            )
        y = W[np.where(is_ignored, 0, x)]
        y[is_ignored] = 0
        return Outputs(y, None)

    def weights(self, x: np.ndarray, W: np.ndarray, gz: np.ndarray, dtype: str) -> Any:
        """Returns the gradient of W, as a contribution."""
        return _LookedUp(x.reshape(-1), gz.reshape(x.size, -1), self.ignored)


class _LookedUp(NamedTuple):
    """The gradient of the rows that were looked up.

    Attributes:
        x: Ids, of shape (n,).
        gz: Gradient of each output, of shape (n, n_units).
        ignored: An id without a row, or ``None``.
    """

    x: np.ndarray
    gz: np.ndarray
    ignored: int | None

    def write(self, out: np.ndarray) -> None:
        """Overwrites the gradient."""
        out[...] = 0
        self._add(out)

    def add(self, out: np.ndarray, scratch: Scratch) -> None:
        """Adds to the gradient."""
        self._add(out)

    def _add(self, out: np.ndarray) -> None:
        x, gz = self.x, self.gz
        if self.ignored is not None:
            has_row = x != self.ignored
            x, gz = x[has_row], gz[has_row]
        np.add.at(out, x, gz)
