"""The gradient of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainer_kernels import threads
from chainer_kernels.layouts import are_float32
from chainer_kernels.loops import embedding as loops

Arrays = tuple[np.ndarray, ...]


def embed_id_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``EmbedIDGrad.forward``."""
    ids, gy = inputs
    if not (are_float32(gy) and type(ids) is np.ndarray and gy.size):
        return NotImplemented
    n_rows, width = function.w_shape
    # A small type of integers may hold no number of rows.
    ids = ids.reshape(-1).astype(np.int64)
    rows = np.where(ids < 0, ids + n_rows, ids)
    is_row = (rows >= 0) & (rows < n_rows)
    if function.ignore_label is not None:
        is_ignored = ids == function.ignore_label
        rows[is_ignored] = -1
        is_row |= is_ignored
    if not is_row.all():
        return NotImplemented
    function.retain_inputs((0,))
    function._gy_shape = gy.shape
    gW = np.zeros((n_rows, width), "f")
    gradients = np.ascontiguousarray(gy.reshape(-1, width))
    threads.run_ranges(loops.add_rows, width, rows, gradients, gW, size=len(rows))
    return (gW,)
