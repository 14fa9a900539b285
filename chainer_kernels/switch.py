"""Whether the kernels are in force."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator

from chainer_kernels import product_dtype


class _Everywhere:
    """The switch for all threads."""

    on = os.environ.get("CHAINER_KERNELS", "1") != "0"


class _Here(threading.local):
    """How many blocks of this thread are left to Chainer, one within the other."""

    n_disabled = 0


everywhere = _Everywhere()
_here = _Here()


def is_on() -> bool:
    """Returns whether the kernels are in force in this thread."""
    return everywhere.on and not _here.n_disabled


def is_ours() -> bool:
    """Returns whether kernels are in force, and iDeep's arithmetic is not asked for.

    Code that computes in place of Chainer calls this first.
    """
    # The switch itself is there before Chainer is.
    import chainer

    return is_on() and chainer.config.use_ideep == "never"


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Leaves a block to Chainer's own arithmetic, in this thread."""
    _here.n_disabled += 1
    try:
        yield
    finally:
        _here.n_disabled -= 1


def products_in_force() -> str:
    """Returns the dtype in which products are computed here, by kernels or Chainer."""
    return product_dtype.here() if is_on() else product_dtype.FLOAT32


def check_products(dtype: str) -> None:
    """Refuses an unknown dtype of products, and one that needs disabled kernels.

    Raises:
        ValueError: The dtype is unknown.
        RuntimeError: The dtype needs kernels, which are disabled.
    """
    product_dtype.check(dtype)
    if dtype != product_dtype.FLOAT32 and not is_on():
        raise RuntimeError(
            f"only kernels compute products in {dtype}, and they are disabled. Call"
            f" chainer_kernels.enable(), or remove CHAINER_KERNELS=0 from the"
            f" environment"
        )


def warn_of_products() -> None:
    """Warns if another dtype than float32 is asked for, and kernels are disabled."""
    dtype = product_dtype.everywhere.dtype
    if dtype != product_dtype.FLOAT32 and not is_on():
        warnings.warn(
            f"Chainer computes all products in float32, although {dtype} is asked for:"
            f" chainer_kernels is disabled. Enable it, or ask for float32",
            RuntimeWarning,
            stacklevel=3,
        )
