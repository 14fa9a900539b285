"""Products of whole numbers of 8 bits, by oneDNN, where a processor has them.

::

    x uint8 (N, I),  W int8 (O, I)   ->   x @ W.T   int32 (N, O), exact

Instructions of older processors add two products in 16 bits, which do not hold all
sums. They are not used. Nor does oneDNN subtract what stands for 0 in x, for then its
sums are rounded to float32 on their way.
"""

from __future__ import annotations

import functools
import os
import threading

import numpy as np

from chainer_kernels import providers
from chainer_kernels.providers import onednn
from chainer_kernels.providers import onednn_library as dnnl
from chainer_kernels.providers.onednn_library import Choice, Layout, Primitive

#: How many products are kept.
_KEPT = 1024

#: Instructions that add up in 32 bits, and the bits by which oneDNN knows them.
INSTRUCTIONS = {"AMX": 0xFEF, "AVX-512 VNNI": 0x67, "AVX VNNI": 0xF}


def instructions() -> str | None:
    """Returns the name of the instructions; ``None`` where products are not offered.

    They need the provider oneDNN, and are those that ``ONEDNN_MAX_CPU_ISA`` leaves.
    """
    if providers.active() is not onednn:
        return None
    found = dnnl.library().get_effective_cpu_isa()
    return next((k for k, bits in INSTRUCTIONS.items() if found & bits == bits), None)


def has_product(n_rows: int, n_inputs: int, n_outputs: int) -> bool:
    """Says whether there is a fast product of a shape, where there are any."""
    return _find(n_rows, n_inputs, n_outputs) is not None


def product(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T``, int32.

    Sums that have more than 32 bits lose those in front.

    Args:
        x: (N, I), uint8, C contiguous.
        W: (O, I), int8, C contiguous.
    """
    y = np.empty((len(x), len(W)), np.int32)
    _find(*x.shape, len(W))(x, y, W)
    return y


def _find(n_rows: int, n_inputs: int, n_outputs: int) -> Primitive | None:
    """Returns a product, made or kept."""
    # Primitives serve one thread each, and reckon with those of their process.
    thread = os.getpid(), threading.get_ident()
    return _make(thread, n_rows, n_inputs, n_outputs)


@functools.lru_cache(_KEPT)
def _make(
    thread: tuple[int, int], n_rows: int, n_inputs: int, n_outputs: int
) -> Primitive | None:
    if not n_rows * n_inputs * n_outputs:
        return None
    x = Layout((n_rows, n_inputs), (n_inputs, 1), "uint8")
    # Weights as they are stored: oneDNN turns them, part by part, while they are in
    # the cache, and a copy in a layout of its choice would be hardly faster.
    W = Layout((n_inputs, n_outputs), (1, n_inputs), "int8")
    y = Layout((n_rows, n_outputs), (n_outputs, 1), "int32")
    try:
        choice = Choice("matmul", dnnl.library().engine, x, W, None, y)
    except dnnl.OneDNNError:
        return None
    if choice.name.startswith("ref"):
        return None
    return Primitive(choice, {dnnl.SRC: x, dnnl.DST: y, dnnl.WEIGHTS: W})
