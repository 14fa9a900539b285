"""Products of float16 matrices whose sums are float16, as on GPUs before Tensor Cores.

Everything else here adds up float16 products in float32, and rounds once. These sums
are rounded after each addition, in the order of the inner index.
``mixed_precision.LayerTypes`` and ``benchmarks.tensor_core_accuracy`` use them.
"""

from __future__ import annotations

import numpy as np

from chainer_kernels.loops import half_sums as loops


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns ``a @ b`` with all partial sums rounded to float16.

    Args:
        a: (m, k), float16.
        b: (k, n), float16.

    Returns:
        (m, n), float16; sums beyond 65504 become infinite.

    Raises:
        TypeError: If an argument is no NumPy array of float16.

    Example:
        >>> ones = np.ones((1, 4096), np.float16)
        >>> float(product(ones, ones.T)[0, 0])           # 2048 + 1 is 2048
        2048.0
    """
    for each in a, b:
        if type(each) is not np.ndarray or each.dtype != np.float16:
            raise TypeError(
                f"sums in float16 are computed of NumPy arrays of float16, not of"
                f" {type(each).__module__}.{type(each).__name__} of"
                f" {getattr(each, 'dtype', None)}"
            )
    out = np.empty((len(a), b.shape[1]), np.uint16)
    row = np.empty(b.shape[1], np.float32)
    wide = [np.ascontiguousarray(each, np.float32) for each in (a, b)]
    loops.multiply(*wide, row, out)
    return out.view(np.float16)
