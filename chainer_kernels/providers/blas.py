"""Products by NumPy's BLAS."""

from __future__ import annotations

import numpy as np

from chainer_kernels.gemm import gemm_add

NAME = "NumPy's BLAS and Numba"


def product(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray | None = None,
    accumulate: bool = False,
) -> np.ndarray:
    """Returns a product of matrices, written or added to ``out`` if there is one."""
    if out is None or not accumulate:
        return np.matmul(a, b, out=out)
    gemm_add(out, a, b)
    return out
