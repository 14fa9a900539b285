"""Eight bits for gradients on the wire: the format e5m2.

::

    S EEEEE MM      the upper byte of a float16; bias 15
    0 00000 01      2^-16    = 1.5e-5     smallest
    0 00001 00      2^-14    = 6.1e-5     smallest normal
    0 11110 11      1.75 2^15 = 57344     largest, code 0x7b
    0 11111 00      infinity, code 0x7c;  NaN is 0x7e, with either sign

A value is multiplied by a scale and rounded to the nearest code, ties to even.

*Saturation*: finite values beyond the largest number become the largest number, because
in a sum of gradients one infinity would spoil the step. *Infinities and NaN stay what
they are*, so that whoever looks for overflow after an exchange still finds it. Apart
from saturation the codes are those of ``ml_dtypes.float8_e5m2``.

See section 3.1 of Oyama et al., Reducing Communication in Data-Parallel Deep Learning
by Low-Precision Floating Point (2017); there, infinities saturate too.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import chainer
import numpy as np

from chainer_kernels.optimizer_loops import loops_for

Array = Any

#: The largest finite number.
LARGEST = 57344.0
#: The ways to round on a CPU.
ROUNDINGS = ("nearest", "truncate")


def encode(
    x: Array, scale: float = 1.0, out: Array | None = None, rounding: str = "nearest"
) -> Array:
    """Returns ``x * scale`` as e5m2.

    The product is rounded to float32 and then to e5m2; a power of two as scale rounds
    once.

    Args:
        x (array): NumPy or CuPy array of float32 or float16.
        scale (float): Positive and finite.
        out (array): A contiguous uint8 array to write to, of the shape of ``x``.
        rounding (str): ``'nearest'``, ties to even; or ``'truncate'``, as the paper
            does: to float16, of which the lower byte is dropped. On a CPU only.

    Returns:
        array: Codes, uint8, of the shape of ``x``.

    Raises:
        TypeError: If a dtype is another one.
        ValueError: If the scale is out of range, ``out`` does not fit, or ``rounding``
            is something else.

    Example:
        >>> x = np.array([1, 1.1, -3e-6, 1e6, np.inf], np.float32)
        >>> codes = encode(x)
        >>> decode(codes)
        array([ 1.0000e+00,  1.0000e+00, -0.0000e+00,  5.7344e+04,         inf],
              dtype=float32)
    """
    if x.dtype.char not in "fe":
        raise TypeError(f"x must be float32 or float16, not {x.dtype}")
    xp = chainer.backend.get_array_module(x)
    if out is None:
        out = xp.empty(x.shape, np.uint8)
    _check_out(out, x, "e5m2 codes need", np.uint8)
    values, codes = xp.ascontiguousarray(x).reshape(-1), out.reshape(-1)
    loops = loops_for(xp)
    encoders = {"nearest": loops.encode_e5m2}
    if xp is np:
        encoders["truncate"] = loops.encode_e5m2_truncated
    if rounding not in encoders:
        raise ValueError(f"rounding must be {_either(encoders)}, not {rounding!r}")
    encoders[rounding](values, _checked(scale), codes)
    return out


def decode(
    codes: Array,
    scale: float = 1.0,
    out: Array | None = None,
    dtype: Any = np.float32,
) -> Array:
    """Returns e5m2 codes, times ``scale``, as floating-point numbers.

    Args:
        codes (array): NumPy or CuPy array of uint8.
        scale (float): Positive and finite.
        out (array): A contiguous array to write to, of float32 or float16, of the shape
            of ``codes``.
        dtype: Dtype of the result without ``out``: float32 or float16.

    Returns:
        array: The numbers, in the shape of ``codes``. Each product is rounded to
        float32, and from there to float16.

    Raises:
        TypeError: If a dtype is another one.
        ValueError: If the scale is out of range, or ``out`` does not fit.

    Example:
        >>> decode(np.array([0x3c, 0xbd], np.uint8), scale=0.5, dtype=np.float16)
        array([ 0.5  , -0.625], dtype=float16)
    """
    if codes.dtype != np.uint8:
        raise TypeError(f"codes must be uint8, not {codes.dtype}")
    xp = chainer.backend.get_array_module(codes)
    if out is None:
        out = xp.empty(codes.shape, dtype)
    if out.dtype.char not in "fe":
        raise TypeError(f"the result can be float32 or float16, not {out.dtype}")
    _check_out(out, codes, "the result needs", out.dtype)
    codes, values = xp.ascontiguousarray(codes).reshape(-1), out.reshape(-1)
    loops_for(xp).decode_e5m2(codes, _checked(scale), values)
    return out


def add(
    codes: Array, others: Array, out: Array | None = None, rounding: str = "nearest"
) -> Array:
    """Returns the e5m2 codes of sums, in one pass that decodes, adds and encodes.

    Sums are computed in float32, and have the bits of :func:`decode` and :func:`encode`
    one after the other. Fig. 2 of the paper has this pass for AVX.

    Args:
        codes (numpy.ndarray): Codes, uint8.
        others (numpy.ndarray): Codes of the same shape.
        out (numpy.ndarray): A contiguous uint8 array to write to, of the same shape. It
            may be ``codes``, and must not overlap with ``others``.
        rounding (str): ``'nearest'`` or ``'truncate'``; see :func:`encode`.

    Returns:
        numpy.ndarray: Codes, uint8.

    Raises:
        TypeError: If codes are not NumPy's uint8.
        ValueError: If shapes differ, ``out`` does not fit, or ``rounding`` is something
            else.

    Example:
        >>> codes, others = encode(np.array([[1, 2, 1], [2, 2, 64]], np.float32))
        >>> decode(add(codes, others))
        array([ 3.,  4., 64.], dtype=float32)
    """
    for each in (codes, others):
        if not isinstance(each, np.ndarray) or each.dtype != np.uint8:
            kind = getattr(each, "dtype", type(each).__name__)
            raise TypeError(f"codes must be NumPy's uint8, not {kind}")
    if codes.shape != others.shape:
        raise ValueError(f"codes of {codes.shape} and {others.shape} cannot be added")
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be {_either(ROUNDINGS)}, not {rounding!r}")
    if out is None:
        out = np.empty(codes.shape, np.uint8)
    _check_out(out, codes, "the sums need", np.uint8)
    # Numba takes a second to load.
    from chainer_kernels.loops.oyama2017 import add_codes

    if out is not codes:
        np.copyto(out, codes)
    others = np.ascontiguousarray(others).reshape(-1)
    add_codes(out.reshape(-1), others, rounding == "truncate")
    return out


def _either(names: Collection[str]) -> str:
    return " or ".join(map(repr, names))


def _checked(scale: float) -> np.float32:
    single = np.float32(scale)
    if not (single > 0 and math.isfinite(single)):
        raise ValueError(f"scale must be positive and finite in float32, not {scale}")
    return single


def _check_out(out: Array, like: Array, what: str, dtype: Any) -> None:
    if out.shape != like.shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(
            f"{what} a contiguous array out of the shape {like.shape} and of"
            f" {np.dtype(dtype)}, not one of {out.shape} and {out.dtype}"
        )
