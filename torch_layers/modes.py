"""Training and evaluation: ``chainer.config.train`` for modules of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(module: nn.Module, trains: bool) -> Iterator[None]:
    """Brings a module and all modules within it into one mode for a while.

    At the end each has its former mode. So ``eval()`` of the user freezes a module for
    good, whether he calls it before an evaluation or after it.

    Args:
        module (torch.nn.Module): The module.
        trains (bool): Whether they train.

    Example:
        >>> module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
        >>> with in_mode(module, False):
        ...     print([each.training for each in module])
        [False, False]
        >>> [each.training for each in module]
        [True, False]
    """
    changed = [each for each in module.modules() if each.training is not trains]
    for each in changed:
        each.training = trains
    try:
        yield
    finally:
        for each in changed:
            each.training = not trains
