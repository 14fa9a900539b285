"""An embedding in Chainer's graph that reads the rows of its weights that it needs.

::

    x       5 2 5 9        four ids, of which two are equal
    sorted  2 5 5 9        places 1 0 2 3
    rows    2 5 9          read from the file; no other row has a gradient

Ids are sorted, so that the file is read from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import chainer
import numpy as np

from chainer_kernels.catalogue import Backward
from chainer_kernels.contributions import Contribution, Scratch
from divisible.streaming.embedding_parameter import EmbeddingParameter
from divisible.streaming.parameter import ARRAY, GRADIENT


class Ids(NamedTuple):
    """The ids of a microbatch that are not ignored, in ascending order.

    Attributes:
        rows: The row of W of each id, with repetitions; of shape (n,).
        places: The place of each id among all ids; of shape (n,).
    """

    rows: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, n_rows: int, ignored: int | None) -> Ids:
        """Sorts the ids of a microbatch.

        Args:
            x: Ids of any shape.
            n_rows: Number of rows of the weights.
            ignored: An id without a row, or ``None``.

        Raises:
            ValueError: If another id has no row.

        Example:
            >>> Ids.of(np.array([[5, 2], [5, -1]]), n_rows=10, ignored=-1)
            Ids(rows=array([2, 5, 5]), places=array([1, 0, 2]))
        """
        flat = x.reshape(-1)
        places = np.argsort(flat, kind="stable")
        if ignored is not None:
            places = places[flat[places] != ignored]
        rows = flat[places].astype(np.int64)
        if rows.size and not 0 <= rows[0] <= rows[-1] < n_rows:
            wrong = rows[0] if rows[0] < 0 else rows[-1]
            raise ValueError(
                f"the id {wrong} has no row in a streamed embedding of {n_rows} rows:"
                f" give ids from 0 to {n_rows - 1}"
                + ("" if ignored is None else f", or {ignored} for nothing")
            )
        return cls(rows, places)


class EmbeddingFunction(chainer.FunctionNode):
    """One call of a streamed embedding, with inputs x and W.

    Args:
        weights (EmbeddingParameter): W.
        ignored: An id without a row, or ``None``.
    """

    def __init__(self, weights: EmbeddingParameter, ignored: int | None) -> None:
        self.weights, self.ignored = weights, ignored
        self.ids = Ids(np.empty(0, int), np.empty(0, int))

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Reads the rows of the ids."""
        x, W = inputs
        self.ids = Ids.of(x, *W.shape[:1], self.ignored)
        rows, places = self.ids
        y = np.zeros((x.size, W.shape[1]), W.dtype)
        for part in self.weights.visiting(rows, set(), {ARRAY}):
            y[places[part]] = W[rows[part]]
        return (y.reshape(*x.shape, W.shape[1]),)

    def backward_accumulate(
        self,
        target_input_indexes: tuple[int, ...],
        grad_outputs: tuple[chainer.Variable, ...],
        grad_inputs: tuple[chainer.Variable | None, ...],
    ) -> tuple[chainer.Variable | None, ...]:
        """Adds to the gradient of W in its file.

        Raises:
            RuntimeError: If gradients of the gradients are needed.
        """
        if chainer.config.enable_backprop:
            raise RuntimeError(
                "a streamed embedding has no double backward: its gradient is in a file"
            )
        share = RowsShare(self, grad_outputs[0].array)
        found: list[chainer.Variable | None] = []
        for number, known in zip(target_input_indexes, grad_inputs):
            if number == 1 and known is None:
                known = chainer.Variable(self.weights.new_gradient())
                share.write(known.array)
            elif number == 1:
                share.add(known.array, Scratch())
            found.append(known)
        return tuple(found)


class RowsShare(NamedTuple):
    """The share of one call of an embedding in the gradient of W.

    Attributes:
        function: The call.
        gy: The gradient of its output.
    """

    function: EmbeddingFunction
    gy: np.ndarray

    def write(self, out: np.ndarray) -> None:
        """Overwrites the gradient."""
        self.function.weights.clear(out)
        self._add(out)

    def add(self, out: np.ndarray, scratch: Scratch) -> None:
        """Adds to the gradient."""
        self._add(out)

    def _add(self, out: np.ndarray) -> None:
        rows, places = self.function.ids
        gy = self.gy.reshape(-1, self.gy.shape[-1])
        for part in self.function.weights.visiting(rows, {GRADIENT}):
            wanted, numbers = np.unique(rows[part], return_inverse=True)
            # The share is summed separately, like a microbatch's gradient in memory.
            share = np.zeros((len(wanted), gy.shape[1]), gy.dtype)
            np.add.at(share, numbers, gy[places[part]])
            out[wanted] += share
        self.function.weights.note_rows(rows)


def _contributions(
    function: EmbeddingFunction,
    parameters: Mapping[int, chainer.Parameter],
    gy: np.ndarray,
) -> dict[int, Contribution]:
    """Returns contributions to the gradient of W; see the kernels' catalogue."""
    return {1: RowsShare(function, gy)} if 1 in parameters else {}


EmbeddingFunction.taken_apart = Backward(True, _contributions, True)
