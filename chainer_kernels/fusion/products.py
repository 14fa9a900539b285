"""Products that begin a chain: linear layers and convolutions.

BLAS or oneDNN computes the product, as a function of its own. The loop behind it adds
the bias of a linear layer.
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

    Subclasses and links whose ``forward`` was replaced are excluded: they may compute
    something else.

    Example:
        >>> is_product(L.Linear(3, 2)), is_product(L.Bias(shape=(3,)))
        (True, False)
    """
    return type(link) in (*_LINEAR, *_CONVOLUTIONS) and "forward" not in vars(link)


def is_linear(link: Any) -> bool:
    """Returns whether a product is a linear layer."""
    return type(link) in _LINEAR


def n_outputs(link: Any) -> int | None:
    """Returns how many outputs a link has; ``None`` before its weights have a size."""
    return None if link.W.array is None else link.W.shape[0]


def is_unsized(link: Any) -> bool:
    """Returns whether a link is a product that gets its size in its first call."""
    return is_product(link) and n_outputs(link) is None


def leaves_bias(link: Any) -> bool:
    """Returns whether the loop behind the product adds the bias of a link."""
    return type(link) in _LINEAR and link.b is not None


def are_ready(link: Any) -> bool:
    """Returns whether the parameters of a link are of float32, in host memory."""
    parameters = [each for each in (link.W, link.b) if each is not None]
    return all(
        isinstance(each, chainer.Parameter) and are_float32(each.array)
        for each in parameters
    )


def product(link: Any, x: Any) -> chainer.Variable:
    """Returns a link's output, without a bias that the loop behind it adds."""
    return F.linear(x, link.W) if leaves_bias(link) else link(x)


class Thin:
    """A link with one input channel: as many outputs from fewer multiplications.

    The time of a product does not depend on the functions that follow. So a measurement
    of these functions uses this small product instead. A grouped convolution keeps all
    of its input channels.

    Args:
        link: The link.
        x: An input of the link.

    Attributes:
        x: The part of the input that this product takes.
    """

    def __init__(self, link: Any, x: np.ndarray) -> None:
        self._link, self._W = link, link.W.array
        self.x = x
        if type(link) in _LINEAR:
            self.x, self._W = x.reshape(len(x), -1)[:, :1].copy(), self._W[:, :1].copy()
        elif link.groups == 1:
            self.x, self._W = x[:, :1].copy(), self._W[:, :1].copy()

    def __call__(self, x: Any, with_bias: bool = True) -> chainer.Variable:
        """Returns the product, by default with the bias of a linear layer."""
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
