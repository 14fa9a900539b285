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

_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)


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
    k = a.shape[1]
    # BLAS thinks in columns: it sees the transposed problem, out.T = b.T @ a.T.
    left, transpose_left, left_stride = _operand(b)
    right, transpose_right, right_stride = _operand(a)
    _sgemm()(
        transpose_left,
        transpose_right,
        ctypes.c_int(n),
        ctypes.c_int(m),
        ctypes.c_int(k),
        _ONE,
        left.__array_interface__["data"][0],
        left_stride,
        right.__array_interface__["data"][0],
        right_stride,
        _ONE if accumulate else _ZERO,
        out.__array_interface__["data"][0],
        ctypes.c_int(max(out.strides[0] // 4 if m > 1 else n, n, 1)),
    )


def _operand(matrix: np.ndarray) -> tuple[np.ndarray, bytes, ctypes.c_int]:
    """Returns a matrix, or a copy, whether it is transposed, and its line's stride."""
    (rows, columns), strides = matrix.shape, matrix.strides
    if (strides[1] == 4 or columns == 1) and (rows == 1 or strides[0] >= 4 * columns):
        return (
            matrix,
            b"N",
            ctypes.c_int(max(strides[0] // 4 if rows > 1 else columns, 1)),
        )
    if (strides[0] == 4 or rows == 1) and strides[1] >= 4 * rows:
        return matrix, b"T", ctypes.c_int(strides[1] // 4)
    matrix = np.ascontiguousarray(matrix)
    return matrix, b"N", ctypes.c_int(max(columns, 1))


@functools.cache
def _sgemm() -> Callable[..., Any]:
    """Returns the BLAS that SciPy brings, as it offers it to Cython."""
    capsule = cython_blas.__pyx_capi__["sgemm"]
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    integer, number = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_float)
    array = ctypes.c_void_p
    types = [ctypes.c_char_p, ctypes.c_char_p, integer, integer, integer, number]
    types += [array, integer, array, integer, number, array, integer]
    return ctypes.CFUNCTYPE(None, *types)(pointer(capsule, name(capsule)))
