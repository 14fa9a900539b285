"""The context of forwards that no backward follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import chainer

from chainer_kernels.fusion.folding import folded_once


@contextmanager
def evaluating() -> Iterator[None]:
    """Returns a context for forwards without a backward or a change of parameters."""
    with (
        chainer.using_config("train", False),
        chainer.no_backprop_mode(),
        folded_once(),
    ):
        yield
