"""Products of matrices that are added to what is there."""

from __future__ import annotations

import functools

import numpy
import threadpoolctl
from scipy.linalg import blas

_GEMM = {numpy.dtype("f"): blas.sgemm, numpy.dtype("d"): blas.dgemm}


@functools.cache
def blas_threads() -> int:
    """Returns how many threads a matrix product runs on, as set when first asked.

    NumPy and SciPy bring a BLAS each, and each its own threads, which spin for a while
    after their work. With several, calling the two in turn is slower than an addition.
    """
    pools = threadpoolctl.threadpool_info()
    return max((p["num_threads"] for p in pools if p["user_api"] == "blas"), default=1)


def gemm_add(out: numpy.ndarray, a: numpy.ndarray, b: numpy.ndarray) -> None:
    """Computes ``out += a @ b`` in one BLAS call; `out` is C contiguous.

    BLAS thinks in columns, so it is given the transposed problem, out.T += b.T @ a.T:
    the transpose of a C contiguous array is a Fortran contiguous view of it. SciPy
    copies operands that are not Fortran contiguous; those that are so without being
    transposed go in as they are, with a flag.
    """
    if not (out.size and a.shape[1]):
        return  # SciPy refuses empty operands
    left, transpose_left = _fortran(b.T)
    right, transpose_right = _fortran(a.T)
    _GEMM[out.dtype](
        1.0,
        left,
        right,
        beta=1.0,
        c=out.T,
        trans_a=transpose_left,
        trans_b=transpose_right,
        overwrite_c=True,
    )


def _fortran(matrix: numpy.ndarray) -> tuple[numpy.ndarray, bool]:
    """Returns a Fortran contiguous array and whether it is the matrix transposed."""
    if matrix.flags.c_contiguous:
        return matrix.T, True
    return numpy.asfortranarray(matrix), False
