"""Products of float32 matrices that may be parts of larger ones.

NumPy multiplies views of larger matrices, but adds nothing to what is there. SciPy's
wrapper adds, but copies what is not contiguous. The BLAS beneath it does both.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable

import numpy as np
from scipy.linalg import cython_blas

_NUMBERS = (ctypes.c_float * 2)(0, 1)
_ZERO, _ONE = ctypes.addressof(_NUMBERS), ctypes.addressof(_NUMBERS) + 4


def sgemm(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, accumulate: bool = False
) -> None:
    """Computes ``out = a @ b``, or ``out += a @ b``.

    Args:
        a: (m, k). Rows or columns are contiguous, or it is copied.
        b: (k, n), likewise.
        out: (m, n); its rows are contiguous.
        accumulate: Whether the product is added to ``out``.

    Example:
        >>> import numpy as np
        >>> out = np.ones((2, 4), 'f')
        >>> sgemm(np.ones((2, 3), 'f'), np.ones((3, 2), 'f'), out[:, :2], True)
        >>> out
        array([[4., 4., 1., 1.],
               [4., 4., 1., 1.]], dtype=float32)

    Raises:
        ValueError: The rows of ``out`` are not contiguous.
    """
    m, n = out.shape
    if n > 1 and out.strides[1] != 4:
        raise ValueError(f"rows of out must be contiguous, not {out.strides}")
    # BLAS thinks in columns: it sees the transposed problem, out.T = b.T @ a.T.
    left, transpose_left, left_stride = operand(b)
    right, transpose_right, right_stride = operand(a)
    stride = max(out.strides[0] // 4 if m > 1 else n, n, 1)
    # It wants addresses of integers.
    sizes = (ctypes.c_int * 6)(n, m, a.shape[1], left_stride, right_stride, stride)
    address = ctypes.addressof(sizes)
    _sgemm()(
        transpose_left,
        transpose_right,
        address,
        address + 4,
        address + 8,
        _ONE,
        left.__array_interface__["data"][0],
        address + 12,
        right.__array_interface__["data"][0],
        address + 16,
        _ONE if accumulate else _ZERO,
        out.__array_interface__["data"][0],
        address + 20,
    )


def operand(matrix: np.ndarray) -> tuple[np.ndarray, bytes, int]:
    """Returns a matrix, or a copy, whether it is transposed, and its line's stride."""
    rows, columns = matrix.shape
    row, column = matrix.strides
    if (column == 4 or columns == 1) and (rows == 1 or row >= 4 * columns):
        return matrix, b"N", row // 4 if rows > 1 else max(columns, 1)
    if (row == 4 or rows == 1) and column >= 4 * rows:
        return matrix, b"T", column // 4
    return np.ascontiguousarray(matrix), b"N", max(columns, 1)


@functools.cache
def _sgemm() -> Callable[..., Any]:
    """Returns the BLAS that SciPy brings, as it offers it to Cython."""
    capsule = cython_blas.__pyx_capi__["sgemm"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    types = [ctypes.c_char_p] * 2 + [ctypes.c_void_p] * 11
    return ctypes.CFUNCTYPE(None, *types)(pointer(capsule, name(capsule)))
