"""Batch normalizations that begin a chain.

::

    BatchNormalization > Add > ReLU
    '------ head ----'   '- tail -'     pointwise functions of what the head returns

A chain is traced and timed with copies of running averages and without hooks, so that a
trial has no effect on training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import chainer
import numpy as np
from chainer.links import BatchNormalization

from chainer_kernels.layouts import are_float32


def is_head(link: chainer.Link) -> bool:
    """Returns whether a link may begin a chain.

    Subclasses and links whose ``forward`` was replaced are excluded: they may compute
    something else.

    Example:
        >>> is_head(BatchNormalization(3))
        True
        >>> is_head(BatchNormalization(3, use_beta=False))
        False
    """
    return (
        type(link) is BatchNormalization
        and link.gamma is not None
        and link.beta is not None
        and "forward" not in vars(link)
    )


def heads_of(layers: Sequence[Callable]) -> list[BatchNormalization]:
    """Returns the links within layers that may begin a chain, without duplicates."""
    links = (
        link
        for layer in layers
        if isinstance(layer, chainer.Link)
        for link in layer.links()
    )
    return list(dict.fromkeys(filter(is_head, links)))


def is_ready(link: BatchNormalization, x: np.ndarray) -> bool:
    """Returns whether a link can normalize an array in its current state.

    Its parameters are float32 in host memory, with one number for each channel. The
    array has more than one number for each channel; Chainer warns otherwise.
    """
    # Parameters without a size have no array, or an array of another class.
    arrays = link.gamma.array, link.beta.array, link.avg_mean, link.avg_var
    if not is_head(link) or not are_float32(*arrays):
        return False
    axis = tuple(link.axis) if link.axis is not None else (0, *range(2, x.ndim))
    kept = [i for i in range(x.ndim) if i not in axis]
    return (
        len(kept) == 1
        and len(axis) == x.ndim - 1
        and all(a.shape == (x.shape[kept[0]],) for a in arrays)
        and x.size > link.gamma.size
    )


@contextlib.contextmanager
def unobserved(layers: Sequence[Callable]) -> Iterator[None]:
    """Disables hooks in a block, and restores running averages at its end."""
    function_hooks, link_hooks = chainer.get_function_hooks(), chainer._get_link_hooks()
    hooks = dict(function_hooks), dict(link_hooks)
    links = [link for link in heads_of(layers) if link.avg_mean is not None]
    kept = [(link, link.avg_mean, link.avg_var, link.N) for link in links]
    function_hooks.clear()
    link_hooks.clear()
    for link in links:
        link.avg_mean, link.avg_var = link.avg_mean.copy(), link.avg_var.copy()
    try:
        yield
    finally:
        for link, mean, variance, n in kept:
            link.avg_mean, link.avg_var, link.N = mean, variance, n
        function_hooks.update(hooks[0])
        link_hooks.update(hooks[1])
