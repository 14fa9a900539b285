"""The numbers in which products and convolutions of float32 arrays are computed.

::

    products('bfloat16')          in a block, in this thread
    set_products('bfloat16')      in all threads
    CHAINER_KERNELS_PRODUCTS      in all threads, from the start

A function records the dtype of its forward, and its backward computes in the same one,
wherever and whenever it runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

FLOAT32, BFLOAT16 = "float32", "bfloat16"
DTYPES = (FLOAT32, BFLOAT16)
VARIABLE = "CHAINER_KERNELS_PRODUCTS"

#: The attribute of a function in which the dtype of its products is.
_RECORD = "chainer_kernels_products"


class _Everywhere:
    """The dtype for all threads."""

    dtype = os.environ.get(VARIABLE) or FLOAT32


class _Here(threading.local):
    """The dtype of the innermost block of this thread; ``None`` outside of blocks."""

    dtype: str | None = None


everywhere = _Everywhere()
_here = _Here()


def here() -> str:
    """Returns the dtype of products in this thread, ``'float32'`` or ``'bfloat16'``.

    Raises:
        ValueError: The environment variable has another value.
    """
    dtype = _here.dtype or everywhere.dtype
    if dtype not in DTYPES:
        raise ValueError(f"{VARIABLE} is {dtype!r}. It must be {_CHOICES}")
    return dtype


def check(dtype: str) -> None:
    """Refuses an unknown dtype of products.

    Raises:
        ValueError: The dtype is unknown.
    """
    if dtype not in DTYPES:
        raise ValueError(f"products are computed in {dtype!r}. Give {_CHOICES}")


@contextlib.contextmanager
def scope(dtype: str) -> Iterator[None]:
    """Computes the products of a block in a dtype, in this thread."""
    before, _here.dtype = _here.dtype, dtype
    try:
        yield
    finally:
        _here.dtype = before


def record(function: Any) -> str:
    """Returns the dtype of products here, and records it for a function's backward.

    Args:
        function: The :class:`~chainer.FunctionNode` that is about to compute.
    """
    dtype = here()
    if dtype != FLOAT32:
        setattr(function, _RECORD, dtype)
    return dtype


def recorded(function: Any) -> str:
    """Returns the dtype of the products in a function's forward."""
    return getattr(function, _RECORD, FLOAT32)


_CHOICES = " or ".join(map(repr, DTYPES))
