"""Batch normalizations folded into the layers before them, in inference.

With running averages instead of a minibatch's statistics, a normalization multiplies
each channel by one factor and adds one summand. Both can be merged into the weights and
the bias of a convolution::

    one by one    y = W * x + b              z = scale (y - mean) + beta
    folded        z = (scale W) * x + (scale (b - mean) + beta)

                  scale = gamma / sqrt(var + eps)

Folding replaces a pass over the outputs by a pass over the weights. It is done only
where there are enough outputs for each weight.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import chainer
import chainer.links as L
import numpy as np
from chainer.utils import conv_nd

from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import are_float32

Layer = Callable[..., Any]

#: Exact types only: a subclass may compute something else.
_CONVOLUTIONS = L.Convolution2D, L.ConvolutionND, L.Convolution1D, L.Convolution3D


#: Fewest outputs for each weight with which folding pays. New weights are not in the
#: cache yet, so that one weight costs about as much as two outputs.
_OUTPUTS_PER_WEIGHT = 2


class _Folds(threading.local):
    #: The folded link of each pair of links, while nothing changes their arrays;
    #: ``None`` outside of :func:`folded_once`.
    kept: dict[tuple[chainer.Link, chainer.Link], chainer.Link] | None = None


_folds = _Folds()


def fold(
    W: np.ndarray,
    b: np.ndarray | None,
    gamma: np.ndarray | None,
    beta: np.ndarray | None,
    mean: np.ndarray,
    var: np.ndarray,
    eps: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights and bias of a layer with a batch normalization folded in.

    Args:
        W: Weights of the layer, outputs along the first axis: (C, ...).
        b: Bias of the layer (C,), or ``None``.
        gamma: Factors of the normalization (C,); ``None`` for ones.
        beta: Summands of the normalization (C,); ``None`` for zeros.
        mean: Running average of means (C,).
        var: Running average of variances (C,).
        eps: Number that the normalization adds to variances.

    Returns:
        New weights in the memory order of ``W``, and a new bias (C,), both with the
        dtype of ``W``.

    Example:
        >>> one = np.ones(1, np.float32)
        >>> W, b = fold(one[:, None], None, 6 * one, one, 5 * one, 4 * one, 0.0)
        >>> W.tolist(), b.tolist()
        ([[3.0]], [-14.0])
    """
    # Computed in float64: a rounding error in a scale is an error of all weights of an
    # output.
    scale = 1 / np.sqrt(var.astype(np.float64) + eps)
    if gamma is not None:
        scale *= gamma
    shift = (-mean if b is None else b.astype(np.float64) - mean) * scale
    if beta is not None:
        shift += beta
    rows = scale.astype(W.dtype).reshape(-1, *[1] * (W.ndim - 1))
    return W * rows, shift.astype(W.dtype)


@contextlib.contextmanager
def folded_once() -> Iterator[None]:
    """Folds each pair of links only once while a block runs, in this thread.

    Nothing may change parameters or running averages within the block. For example, a
    block can run the microbatches of one evaluation. Outside of a block, each pass
    folds its pairs again.
    """
    before, _folds.kept = _folds.kept, {}
    try:
        yield
    finally:
        _folds.kept = before


def are_pair(layer: Layer, norm: Layer) -> bool:
    """Returns whether two layers in a row are links of classes that can be folded.

    Example:
        >>> are_pair(L.Linear(2, 3), L.BatchNormalization(3))
        True
    """
    return (
        (type(layer) is L.Linear or type(layer) in _CONVOLUTIONS)
        and type(norm) is L.BatchNormalization
        and not any("forward" in vars(link) for link in (layer, norm))
    )


def folded(layer: chainer.Link, norm: chainer.Link, x: Any) -> chainer.Variable | None:
    """Returns the output of a layer and a batch normalization, run as one layer.

    Args:
        layer: A convolution or a ``Linear``.
        norm: The batch normalization of the layer's output. The two links satisfy
            :func:`are_pair`.
        x: The input.

    Returns:
        The output. ``None`` where folding would not be faster, or where arrays are not
        float32 in host memory with one number for each channel.
    """
    array = x.array if isinstance(x, chainer.Variable) else x
    if not _can_fold(layer, norm, array):
        return None
    # `inner_pairs` replaces ``forward`` of the instances, so the class is called.
    return type(layer).forward(_folded(layer, norm), x)


def _can_fold(layer: chainer.Link, norm: chainer.Link, x: Any) -> bool:
    """Returns whether a layer and a normalization can run as one, and faster."""
    params = [layer.W, layer.b, norm.gamma, norm.beta]
    given = [param for param in params if param is not None]
    # Other classes, such as streamed parameters, may fetch arrays from elsewhere.
    if not all(type(param) is chainer.Parameter for param in given):
        return False
    W, *numbers = (param.array for param in given)
    numbers += norm.avg_mean, norm.avg_var
    if not are_float32(x, W, *numbers):
        return False
    if any(array.shape != W.shape[:1] for array in numbers):
        return False
    if norm.axis is not None and tuple(norm.axis) != (0, *range(2, W.ndim)):
        return False
    return _n_outputs(layer, x.shape) >= _OUTPUTS_PER_WEIGHT * W.size


def _n_outputs(layer: chainer.Link, shape: tuple[int, ...]) -> int:
    """Returns the size of a layer's output; 0 where the layer will refuse the input."""
    W = layer.W.array
    if type(layer) is L.Linear:
        return shape[0] * len(W) if len(shape) > 1 else 0
    if len(shape) != W.ndim:
        return 0
    n = W.ndim - 2
    options = layer.stride, layer.pad, layer.dilate
    geometry = Geometry(
        W.shape[2:],
        *(conv_nd.as_tuple(option, n) for option in options),
        layer.groups,
        getattr(layer, "cover_all", False),
    )
    sizes = geometry.output_sizes(shape[2:])
    return shape[0] * len(W) * math.prod(sizes) if min(sizes) > 0 else 0


def _folded(layer: chainer.Link, norm: chainer.Link) -> chainer.Link:
    """Returns a folded link, made now or earlier in a block of `folded_once`."""
    kept = {} if _folds.kept is None else _folds.kept
    if (layer, norm) not in kept:
        arrays = [
            None if param is None else param.array
            for param in (layer.W, layer.b, norm.gamma, norm.beta)
        ]
        W, b = fold(*arrays, norm.avg_mean, norm.avg_var, norm.eps)
        link = copy.copy(layer)
        link.W, link.b = chainer.Variable(W), chainer.Variable(b)
        kept[layer, norm] = link
    return kept[layer, norm]
