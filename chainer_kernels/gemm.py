"""Products of matrices that may be parts of others, perhaps added to what is there.

NumPy multiplies views of larger matrices, but adds nothing to what is there. SciPy's
wrapper adds, but copies what is not contiguous. The BLAS beneath it does both.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable

import numpy
from scipy.linalg import cython_blas


def gemm(
    a: numpy.ndarray, b: numpy.ndarray, out: numpy.ndarray, accumulate: bool = False
) -> None:
    """Computes ``out = a @ b``, or ``out += a @ b``, in one BLAS call.

    All three are of float32 or all of float64.

    Args:
        a: (m, k). Rows or columns are contiguous, or it is copied.
        b: (k, n). Rows or columns are contiguous, or it is copied.
        out: (m, n); its rows are contiguous.
        accumulate: Whether the product is added to ``out``.

    Raises:
        ValueError: The rows of ``out`` are not contiguous.

    Example:
        >>> import numpy as np
        >>> out = np.ones((2, 4), 'f')
        >>> gemm(np.ones((2, 3), 'f'), np.ones((3, 2), 'f'), out[:, :2], True)
        >>> out
        array([[4., 4., 1., 1.],
               [4., 4., 1., 1.]], dtype=float32)
    """
    m, n = out.shape
    if not out.size:
        return
    if n > 1 and out.strides[1] != out.itemsize:
        raise ValueError(f"rows of out must be contiguous, not {out.strides}")
    # BLAS thinks in columns: it sees the transposed problem, out.T = b.T @ a.T.
    left, transpose_left, left_stride = operand(b)
    right, transpose_right, right_stride = operand(a)
    stride = max(out.strides[0] // out.itemsize if m > 1 else n, n)
    call, zero, one = _blas(out.dtype.char)
    # BLAS takes the addresses of integers.
    sizes = (ctypes.c_int * 6)(n, m, a.shape[1], left_stride, right_stride, stride)
    address = ctypes.addressof(sizes)
    call(
        transpose_left,
        transpose_right,
        address,
        address + 4,
        address + 8,
        one,
        left.__array_interface__["data"][0],
        address + 12,
        right.__array_interface__["data"][0],
        address + 16,
        one if accumulate else zero,
        out.__array_interface__["data"][0],
        address + 20,
    )


def operand(matrix: numpy.ndarray) -> tuple[numpy.ndarray, bytes, int]:
    """Returns a matrix, or a copy, whether it is transposed, and its line's stride."""
    rows, columns = matrix.shape
    row, column = matrix.strides
    item = matrix.itemsize
    # A row that is alone has no stride; a field of records may have an odd one.
    if (column == item or columns == 1) and (
        rows == 1 or (row >= item * columns and not row % item)
    ):
        return matrix, b"N", max(row // item if rows > 1 else columns, 1)
    if (row == item or rows == 1) and column >= item * rows and not column % item:
        return matrix, b"T", column // item
    return numpy.ascontiguousarray(matrix), b"N", max(columns, 1)


#: Factors 0 and 1 in memory: BLAS takes their addresses.
_FACTORS = {"f": (ctypes.c_float * 2)(0, 1), "d": (ctypes.c_double * 2)(0, 1)}


@functools.cache
def _blas(dtype: str) -> tuple[Callable[..., Any], int, int]:
    """Returns the BLAS that SciPy brings, and where it finds 0 and 1."""
    capsule = cython_blas.__pyx_capi__[{"f": "sgemm", "d": "dgemm"}[dtype]]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    types = [ctypes.c_char_p] * 2 + [ctypes.c_void_p] * 11
    call = ctypes.CFUNCTYPE(None, *types)(pointer(capsule, name(capsule)))
    factors = _FACTORS[dtype]
    zero = ctypes.addressof(factors)
    return call, zero, zero + ctypes.sizeof(factors) // 2
