"""Products of stacks of matrices in bfloat16, by oneDNN, such as those of attention.

One call computes all products of a stack. Stacks are broadcast as NumPy does::

    a (..., m, k) bfloat16, b (..., k, n) bfloat16  ->  (..., m, n) float32
"""

from __future__ import annotations

import functools
import math
import os
import threading

import numpy as np

from chainer_kernels.product_dtype import BFLOAT16
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_convolutions import strides
from chainer_kernels.providers.onednn_library import AlgorithmChoice, Layout, Primitive

#: How many products are kept.
_KEPT = 1024

Shape = tuple[int, ...]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Returns the products of two stacks; ``None`` where oneDNN has no fast code.

    Args:
        a: (..., m, k), the bits of bfloat16.
        b: (..., k, n), the bits of bfloat16.
    """
    n_axes = max(a.ndim, b.ndim)
    a, b = (x.reshape(*[1] * (n_axes - x.ndim), *x.shape) for x in (a, b))
    # A primitive serves one thread, and relies on the threads of its process.
    thread = os.getpid(), threading.get_ident()
    steps = [tuple(step // x.itemsize for step in x.strides) for x in (a, b)]
    compute = _make(thread, a.shape, steps[0], b.shape, steps[1])
    if compute is None:
        return None
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = np.empty((*leading, a.shape[-2], b.shape[-1]), np.float32)
    compute(a, y, b)
    return y


@functools.lru_cache(_KEPT)
def _make(
    thread: tuple[int, int], a: Shape, a_steps: Shape, b: Shape, b_steps: Shape
) -> Primitive | None:
    leading = np.broadcast_shapes(a[:-2], b[:-2])
    y = (*leading, a[-2], b[-1])
    if not math.prod((*y, a[-1])):
        return None
    layouts = {
        dnnl.SRC: Layout(a, a_steps, BFLOAT16),
        dnnl.DST: Layout(y, strides(y)),
        dnnl.WEIGHTS: Layout(b, b_steps, BFLOAT16),
    }
    ends = layouts[dnnl.SRC], layouts[dnnl.WEIGHTS], None, layouts[dnnl.DST]
    try:
        choice = AlgorithmChoice("matmul", dnnl.library().engine, *ends)
        # Others compute matrix by matrix, and slowly.
        return Primitive(choice, layouts) if choice.name.startswith("brg") else None
    except dnnl.OneDNNError:
        return None
