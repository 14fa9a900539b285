"""The gradient of embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels import switch, threads
from chainer_kernels.contributions import Contribution, Rows, Scratch
from chainer_kernels.layouts import are_float32
from chainer_kernels.loops import embedding as loops

Arrays = tuple[np.ndarray, ...]


def embed_id_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``EmbedIDGrad.forward``."""
    ids, gy = inputs
    share = _share(ids, gy, function.w_shape, function.ignore_label)
    if share is None:
        return NotImplemented
    function.retain_inputs((0,))
    function._gy_shape = gy.shape
    gW = np.empty(function.w_shape, "f")
    share.write(gW)
    return (gW,)


class EmbeddingRows(NamedTuple):
    """The gradient of an embedding, of which only some rows are not zero.

    Attributes:
        rows: The row of each word, int64 of shape (N,); negative for none.
        gy: The output gradient of each word, float32 of shape (N, width), contiguous.
    """

    rows: np.ndarray
    gy: np.ndarray

    def write(self, out: np.ndarray) -> None:
        """Overwrites an array."""
        out[...] = 0
        self._add(out)

    def add(self, out: np.ndarray, scratch: Scratch) -> None:
        """Adds to an array, without one of its own for the other rows."""
        self._add(out)

    def _add(self, out: np.ndarray) -> None:
        n_rows, width = self.gy.shape
        arguments = self.rows, self.gy, out.reshape(-1, width)
        threads.run_ranges(loops.add_rows, width, *arguments, size=n_rows)

    def joined(
        self, others: Sequence[Contribution], rows: Rows
    ) -> EmbeddingRows | None:
        """Returns the gradient for the words of all microbatches."""
        if any(type(other) is not EmbeddingRows for other in others):
            return None
        every = [self, *others]
        ids, gy = (rows.of([each[i] for each in every]) for i in (0, 1))
        return None if gy is None else EmbeddingRows(ids, gy)


def weights(
    function: chainer.FunctionNode,
    parameters: Mapping[int, chainer.Parameter],
    gy: Any,
) -> dict[int, Contribution]:
    """Adds to the gradient of an embedding.

    Args:
        function: An ``EmbedIDFunction``, of words and W.
        parameters: The inputs that are parameters, by index.
        gy: Output gradient.
    """
    ids = function.inputs[0].data
    if 1 not in parameters or not (switch.is_ours() and are_float32(gy)):
        return {}
    share = _share(ids, gy, parameters[1].shape, function.ignore_label)
    return {} if share is None else {1: share}


def _share(
    ids: Any, gy: Any, shape: tuple[int, int], ignore_label: int | None
) -> EmbeddingRows | None:
    """Returns the gradient of an embedding; ``None`` if Chainer has to compute it."""
    if not (are_float32(gy) and type(ids) is np.ndarray and gy.size):
        return None
    n_rows, width = shape
    # A small type of integers may hold no number of rows.
    ids = ids.reshape(-1).astype(np.int64)
    rows = np.where(ids < 0, ids + n_rows, ids)
    is_row = (rows >= 0) & (rows < n_rows)
    if ignore_label is not None:
        is_ignored = ids == ignore_label
        rows[is_ignored] = -1
        is_row |= is_ignored
    if not is_row.all():
        return None
    return EmbeddingRows(rows, np.ascontiguousarray(gy.reshape(-1, width)))
