"""PyTorch's random numbers, by step, microbatch and layer.

Within :func:`~divisible.keyed_random_state`, and so in each pipeline, a layer draws
from a stream of its own. PyTorch's generator is seeded by the same key as NumPy's::

    (seed, step, microbatch, train, position)  -->  NumPy's stream of the layer
                                               -->  a seed of 63 bits  -->  PyTorch's

So the masks of dropout depend neither on the cut nor on the schedule, and a layer that
is recomputed draws the same again. Elsewhere layers draw as in any program of PyTorch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from divisible.random_streams import note_draw, stream_words

# Modules of torch.nn, by the file that they are defined in, which draw no numbers.
_SURE = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "batchnorm",
        "channelshuffle",
        "container",
        "conv",
        "distance",
        "flatten",
        "fold",
        "instancenorm",
        "linear",
        "normalization",
        "padding",
        "pixelshuffle",
        "sparse",
        "upsampling",
    )
)
_SURE_CLASSES = frozenset(
    {
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
        *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
        *(nn.CELU, nn.ELU, nn.GELU, nn.GLU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh),
        *(nn.LeakyReLU, nn.LogSigmoid, nn.LogSoftmax, nn.Mish, nn.PReLU, nn.ReLU),
        *(nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softmax, nn.Softplus, nn.Softsign),
        nn.Tanh,
    }
)


class _Last(threading.local):
    """The stream that a layer of this thread drew from, and the state that it left."""

    words: Sequence[int] | None = None
    state: torch.Tensor | None = None


_last = _Last()


def may_draw(module: nn.Module) -> bool:
    """Returns whether a module may draw random numbers in a call.

    Example:
        >>> may_draw(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), may_draw(nn.Dropout())
        (False, True)
    """
    return not all(
        type(each) in _SURE_CLASSES or type(each).__module__ in _SURE
        for each in module.modules()
    )


def layer_stream() -> Any:
    """Returns the context of a call that draws from the stream of its layer.

    Returns:
        The context; ``None`` outside of :func:`~divisible.keyed_random_state`.
    """
    words = stream_words()
    return None if words is None else _drawing(words)


@contextmanager
def _drawing(words: Sequence[int]) -> Iterator[None]:
    generator = torch.default_generator
    before = generator.get_state()
    # A second call in one layer continues the stream.
    if _last.words is words:
        generator.set_state(_last.state)
    else:
        generator.manual_seed(_seed(words))
    began = generator.get_state()
    try:
        yield
    finally:
        _last.words, _last.state = words, generator.get_state()
        if not torch.equal(_last.state, began):
            note_draw()
        generator.set_state(before)


def _seed(words: Sequence[int]) -> int:
    """Returns 63 bits that depend on all words."""
    text = np.array(words, np.uint64).tobytes()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
