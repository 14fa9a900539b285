"""Who computes products and convolutions: one module each, behind one interface.

A provider is a module with::

    NAME                                           for people
    convolution(x, W, b, geometry)              -> y     forward; b may be None
    convolution_data(gy, W, geometry, size)     -> gx    the gradient of x
    convolution_weights(x, gy, geometry)        -> gW    the gradient of W
    product(a, b, out=None, accumulate=False)   -> a @ b, or out, perhaps added

Arrays are float32. Activations are C contiguous and channels last: x (N, *sizes, C),
y (N, *sizes, O). W and gW are Chainer's, (O, C / groups, *kernel), and C contiguous.
Matrices may be transposed views.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import NamedTuple


class Geometry(NamedTuple):
    """A convolution's shape, for each spatial axis.

    Attributes:
        kernel: Size of the window.
        stride: Its steps.
        pad: Zeros before and behind.
        dilation: Distance of what the window reads.
        groups: How many parts of the channels are convolved apart.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@functools.cache
def active() -> ModuleType:
    """Returns the provider that is in use."""
    return importlib.import_module("chainer_kernels.providers.blas")
