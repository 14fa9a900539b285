"""Runs lists of layers with batch normalizations folded into the layers before them.

::

    layers     Linear  BatchNormalization   relu   Sequential   a marked layer
    run        '----- as one layer -----'   relu   both in the same way within
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chainer

from chainer_kernels.fusion import inner_pairs
from chainer_kernels.fusion.folding import are_pair, folded
from chainer_kernels.fusion.trust import is_marked
from chainer_kernels.hooks import has_hooks, is_quiet

Layer = Callable[..., Any]


def run(layers: Sequence[Layer], index: int, value: Any) -> tuple[int, Any] | None:
    """Runs a layer and the normalization behind it as one layer, if possible.

    Pairs within the next layer are folded as well, if that layer is a
    :class:`chainer.Sequential` or a link marked :func:`~chainer_kernels.fusible`.

    Args:
        layers: The layers. Nothing else runs between them.
        index: Index of the next layer.
        value: Input of the next layer, or a tuple of inputs.

    Returns:
        How many layers have run, and the output of the last one. ``None`` if nothing
        could be folded, so that no layer has run.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> import numpy as np
        >>> layers = [L.Linear(2, 3), L.BatchNormalization(3), F.relu]
        >>> with chainer.using_config('train', False), chainer.no_backprop_mode():
        ...     n_layers, y = run(layers, 0, np.ones((4, 2), np.float32))
        >>> n_layers, y.shape
        (2, (4, 3))
    """
    if chainer.config.train or chainer.config.enable_backprop:
        return None
    layer, norm = layers[index], next(iter(layers[index + 1 : index + 2]), None)
    inputs = value if isinstance(value, tuple) else (value,)
    if are_pair(layer, norm):
        if len(inputs) != 1 or not is_quiet() or has_hooks(layer) or has_hooks(norm):
            return None
        y = folded(layer, norm, *inputs)
        return None if y is None else (2, y)
    if type(layer) is not chainer.Sequential:
        if not isinstance(layer, chainer.Link) or not is_marked(layer):
            return None
        if not is_quiet() or (found := inner_pairs.run(layer, inputs)) is None:
            return None
        return 1, *found
    if not _has_pairs(layer) or not is_quiet() or has_hooks(layer):
        return None
    # The first call draws weights; it must be a plain call of the layer.
    if not all(param.is_initialized for param in layer.params()):
        return None
    return 1, _through(list(layer), value)


def _has_pairs(layers: chainer.Sequential) -> bool:
    """Returns whether something in a ``Sequential`` may be folded."""
    if "forward" in vars(layers):
        return False
    each = list(layers)
    return any(map(are_pair, each, each[1:])) or any(
        _has_pairs(layer) if type(layer) is chainer.Sequential else is_marked(layer)
        for layer in each
        if isinstance(layer, chainer.Link)
    )


def _through(layers: Sequence[Layer], value: Any) -> Any:
    """Passes a value through layers, as :class:`chainer.Sequential` does."""
    index = 0
    while index < len(layers):
        found = run(layers, index, value)
        if found is not None:
            n_layers, value = found
        else:
            n_layers, layer = 1, layers[index]
            value = layer(*value) if isinstance(value, tuple) else layer(value)
        index += n_layers
    return value
