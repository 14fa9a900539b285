"""Providers of products and convolutions: one module each, behind one interface.

A provider is a module with::

    NAME                                           for people
    version()                                   -> str   of the library, for people
    is_usable(is_asked_for)                     -> bool  warns of what is broken
    convolution(x, W, b, geometry, relu=False)  -> y     forward; b may be None
    convolution_data(gy, W, geometry, size)     -> gx    the gradient of x
    convolution_weights(x, gy, geometry, out=None, accumulate=False)
                                                -> gW, or out, perhaps added
    turns_weights(x, gy, geometry)              -> bool   of shapes: as the next two
    add_turned_weights(x, gy, geometry, out, is_first)   gW in another order, added up
    turn_weights_back(turned)                            to Chainer's, where it is
    product(a, b, out=None, accumulate=False)   -> a @ b, or out, perhaps added
    product_with_weights(a, W, is_transposed, bias=None)
                                                -> a @ W, or a @ W.T, plus the bias
    as_operand(W)                               -> W, to be a right operand repeatedly

In bfloat16 also::

    product_of_stacks(a, b)                     -> a @ b, or None

Arrays are float32. Those that compute in bfloat16 round operands themselves.
Activations are C contiguous and channels last: x (N, *sizes, C), y (N, *sizes, O). W
and gW are Chainer's, (O, C / groups, *kernel), and C contiguous. Matrices may be
transposed views. ``pad`` is the padding before the inputs. The padding behind them
follows from the sizes of y, ``geometry.output_sizes``. ``relu`` replaces negative
numbers in y by zero, while they are in the cache. Arrays made of W may be kept, where
:mod:`chainer_kernels.prepared_weights` allows it.

``cudnn`` has another interface. It computes with CuPy's arrays.

::

    blas                 a BLAS and compiled loops
    blas_weights         its gradients of a convolution's weights
    rounded              the same in bfloat16, for processors without its instructions
    onednn               oneDNN
    onednn_bfloat16      the same in bfloat16
    onednn_convolutions  its convolutions
    onednn_products      its products of few rows with weights
    onednn_stacks        its products of stacks of matrices in bfloat16
    amx_products         products in bfloat16 by AMX
    onednn_library       its C interface
    cudnn                cuDNN
    cudnn_library        its graphs
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from types import ModuleType

from chainer_kernels.product_dtype import FLOAT32
from chainer_kernels.providers.rounded import RoundedOperands

#: The providers, in the order in which they are tried.
NAMES = ("onednn", "blas")


@functools.cache
def active() -> ModuleType:
    """Returns the provider that is in use.

    The provider is the first of :data:`NAMES` that can be used here, or the one that
    the environment variable ``CHAINER_KERNELS_PROVIDER`` names.

    Raises:
        ValueError: The environment variable names an unknown provider.
    """
    asked = os.environ.get("CHAINER_KERNELS_PROVIDER") or None
    if asked not in (None, *NAMES):
        raise ValueError(
            f"CHAINER_KERNELS_PROVIDER is {asked!r}, but providers are called"
            f" {' and '.join(NAMES)}"
        )
    for name in (asked,) if asked else NAMES:
        provider = importlib.import_module(f"chainer_kernels.providers.{name}")
        if provider.is_usable(asked is not None):
            return provider
    return importlib.import_module("chainer_kernels.providers.blas")


def of(dtype: str) -> ModuleType | RoundedOperands:
    """Returns the provider of products in a dtype.

    Args:
        dtype: Dtype of the operands, as :func:`.product_dtype.here` returns it.
    """
    return active() if dtype == FLOAT32 else _in_bfloat16()


@functools.cache
def _in_bfloat16() -> ModuleType | RoundedOperands:
    """Returns the provider of products in bfloat16; warns if it has no instructions."""
    if bfloat16_instructions() is None:
        warnings.warn(
            "products in bfloat16 are slower here than in float32: operands are"
            " rounded, and multiplied in float32. Instructions need oneDNN (pip install"
            " onednn-cpu-gomp) and a processor with AMX or AVX-512-BF16",
            RuntimeWarning,
            stacklevel=2,
        )
        return RoundedOperands(active())
    return importlib.import_module("chainer_kernels.providers.onednn_bfloat16")


def bfloat16_instructions() -> str | None:
    """Returns the instructions that multiply bfloat16; ``None`` if there are none."""
    if not active().__name__.endswith(".onednn"):
        return None
    in_bfloat16 = "chainer_kernels.providers.onednn_bfloat16"
    return importlib.import_module(in_bfloat16).instructions()
