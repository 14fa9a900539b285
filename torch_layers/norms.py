"""Batch normalization of PyTorch that reports its statistics instead of averaging them.

A pipeline moves running averages once for each minibatch, by the statistics of all its
samples. While a layer collects, each batch normalization gets averages that nobody
reads, and a momentum of 1, so that it writes the statistics of the microbatch there::

    module          running_mean   momentum
    before          mean           0.1
    in the call     statistics     1          -->  collect(average, sample)
    after           mean           0.1
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from divisible.running_averages import RunningAverage, Sample
from torch_layers.arrays import to_array

#: Modules that accept float16 inputs beside float32 parameters.
NORMALIZATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm)

_MEAN, _VARIANCE, _COUNT = "running_mean", "running_var", "num_batches_tracked"

Collect = Callable[[RunningAverage, Sample], None]


class _Active(threading.local):
    """The function that collects this thread's statistics within `collecting`."""

    collect: Collect | None = None
    #: The averages and the momentum of the modules under way, by identity.
    kept: dict[int, tuple]


_active = _Active()


def averaging_modules(module: nn.Module) -> list[nn.Module]:
    """Returns the modules that move running averages in training.

    Example:
        >>> len(averaging_modules(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))))
        1
    """
    return [
        each
        for each in module.modules()
        if isinstance(each, _BatchNorm) and each.track_running_stats
    ]


def prepare(module: nn.Module) -> None:
    """Adds the hooks by which a batch normalization reports its statistics."""
    if any(hook is _before for hook in module._forward_pre_hooks.values()):
        return
    module.register_forward_pre_hook(_before)
    module.register_forward_hook(_after, with_kwargs=True, always_call=True)


@contextmanager
def collecting(collect: Collect) -> Iterator[None]:
    """Makes the modules that this thread calls report their statistics.

    Args:
        collect: Called with the averages of a module and a sample of statistics.
    """
    before, _active.collect, _active.kept = _active.collect, collect, {}
    try:
        yield
    finally:
        _active.collect = before


def _before(module: nn.Module, args: tuple) -> None:
    buffers = module._buffers
    if _active.collect is None or not module.training or buffers[_MEAN] is None:
        return
    names = (_MEAN, _VARIANCE, _COUNT)
    kept = {name: buffers[name] for name in names}
    _active.kept[id(module)] = kept, module.momentum
    buffers[_MEAN] = torch.zeros_like(kept[_MEAN])
    buffers[_VARIANCE] = torch.zeros_like(kept[_VARIANCE])
    if kept[_COUNT] is not None:
        buffers[_COUNT] = kept[_COUNT].clone()
    module.momentum = 1.0


def _after(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
    collect = _active.collect
    if collect is None or id(module) not in _active.kept:
        return
    kept, momentum = _active.kept.pop(id(module))
    buffers = module._buffers
    mean, variance = to_array(buffers[_MEAN]), to_array(buffers[_VARIANCE])
    buffers.update(kept)
    module.momentum = momentum
    # There is no output after an error.
    if output is not None:
        # A call may give its input by name.
        x, *_ = (*args, *kwargs.values())
        n = x.numel() // x.shape[1]
        collect(average_of(module), Sample(n, mean, variance))


def average_of(module: nn.Module) -> RunningAverage:
    """Returns the running averages of a batch normalization."""
    count, momentum = module._buffers[_COUNT], module.momentum

    def decay(n_calls_before: int) -> float:
        if momentum is not None:
            return 1 - momentum
        return 1 - 1 / (int(count) + n_calls_before + 1)

    def moved() -> None:
        if count is not None:
            count.add_(1)

    mean, variance = module._buffers[_MEAN], module._buffers[_VARIANCE]
    return RunningAverage(
        mean.data_ptr(), to_array(mean), to_array(variance), decay, moved
    )
