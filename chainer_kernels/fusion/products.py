"""Products that begin a chain: linear layers and convolutions.

The product itself is BLAS's or oneDNN's, and stays a function of its own. A linear
layer leaves its bias to what follows.
"""

from __future__ import annotations

from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from chainer_kernels.layouts import are_float32

_LINEAR = (L.Linear,)
_CONVOLUTIONS = L.Convolution1D, L.Convolution2D, L.Convolution3D, L.ConvolutionND


def is_product(link: Any) -> bool:
    """Returns whether a link may begin a chain.

    A subclass may do anything, and so may a link that was given another ``forward``.

    Example:
        >>> is_product(L.Linear(3, 2)), is_product(L.Bias(shape=(3,)))
        (True, False)
    """
    return type(link) in (*_LINEAR, *_CONVOLUTIONS) and "forward" not in vars(link)


def n_outputs(link: Any) -> int | None:
    """Returns how many outputs a link has; ``None`` if it has no size yet."""
    return None if link.W.array is None else len(link.W)


def leaves_bias(link: Any) -> bool:
    """Returns whether a bias is added after the product."""
    return type(link) in _LINEAR and link.b is not None


def are_ready(link: Any) -> bool:
    """Returns whether the parameters of a link are of float32, in host memory."""
    parameters = [each for each in (link.W, link.b) if each is not None]
    return all(
        isinstance(each, chainer.Parameter) and are_float32(each.array)
        for each in parameters
    )


def product(link: Any, x: Any) -> chainer.Variable:
    """Returns what a link computes, without the bias that it leaves."""
    return F.linear(x, link.W) if leaves_bias(link) else link(x)


class Thin:
    """A link with a part of its inputs: as many outputs from fewer multiplications.

    What a product takes is the same whatever follows; a small one stands for it where
    what follows is measured.

    Args:
        link: The link.
        x: An input.

    Attributes:
        x: A part of that.
    """

    def __init__(self, link: Any, x: np.ndarray) -> None:
        self._link, self._W = link, link.W.array
        self.x = x
        if type(link) in _LINEAR:
            self.x, self._W = x.reshape(len(x), -1)[:, :1].copy(), self._W[:, :1].copy()
        elif link.groups == 1:
            self.x, self._W = x[:, :1].copy(), self._W[:, :1].copy()

    def __call__(self, x: Any, with_bias: bool = True) -> chainer.Variable:
        """Returns the product, with the bias or without that which is left."""
        link = self._link
        if type(link) in _LINEAR:
            return F.linear(x, self._W, link.b if with_bias else None)
        options = {"dilate": link.dilate, "groups": link.groups}
        if type(link) is L.Convolution2D:
            convolve = F.convolution_2d
        else:
            convolve = F.convolution_nd
            options["cover_all"] = link.cover_all
        return convolve(x, self._W, link.b, link.stride, link.pad, **options)
