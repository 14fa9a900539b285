"""The cost of every minibatch of a training run, as observations of the trainer."""

from __future__ import annotations

import resource
import sys
from typing import Any, NamedTuple

import numpy as np
from chainer.backends import cuda

from divisible.schedules.actions import Action
from divisible.schedules.rank_program import Record

#: Names of the observations, after the prefix of the updater.
NAMES = ("samples_per_second", "bubble", "communication", "process_memory")


class StepCost(NamedTuple):
    """The cost of one minibatch on one rank.

    Attributes:
        computing (float): Seconds in forward and backward.
        communicating (float): Seconds in sends and in waits for messages.
        span (float): Seconds from the first operation to the last.
        seconds (float): Seconds of the whole update, reading and optimizer included.
        process_memory (float): Most bytes that the process has used at a time.
    """

    computing: float
    communicating: float
    span: float
    seconds: float
    process_memory: float


def measure(record: Record, seconds: float, device: Any) -> StepCost:
    """Returns the cost of a minibatch on this rank.

    Args:
        record (Record): The operations of this rank, with their times.
        seconds (float): Seconds of the whole update.
        device (chainer.backend.Device): Device of the arrays.
    """
    durations, operations = record.durations, record.program.operations
    is_action = np.array([isinstance(each, Action) for each in operations], dtype=bool)
    computing = float(durations[is_action].sum())
    communicating = float(durations.sum()) - computing
    memory = process_memory(device)
    return StepCost(computing, communicating, record.span, seconds, memory)


def observations(costs: np.ndarray, n_samples: int) -> dict[str, float]:
    """Returns a minibatch's observations, from the costs of all ranks.

    Args:
        costs (numpy.ndarray): A row of `StepCost` for each rank.
        n_samples (int): Number of samples in the minibatch.

    Returns:
        dict: Values by name, of `NAMES`. Samples per second of the slowest rank; the
            share of all ranks' time without computation; the mean seconds that a rank
            sent and waited; and the most bytes that a process used.

    Example:
        >>> slow, fast = StepCost(3.0, 1, 4, 5, 7e6), StepCost(2.0, 1, 3, 5, 8e6)
        >>> observations(np.array([slow, fast]), n_samples=100)['bubble']
        0.375
    """
    computing, communicating, span, seconds, memory = np.asarray(costs).T
    makespan = span.max()
    values = (
        n_samples / seconds.max(),
        1 - computing.mean() / makespan if makespan > 0 else 0.0,
        communicating.mean(),
        memory.max(),
    )
    return dict(zip(NAMES, map(float, values)))


def process_memory(device: Any) -> int:
    """Returns the most bytes that this process used; on a GPU, the bytes there now."""
    if isinstance(device, cuda.GpuDevice):
        with device.device:
            return cuda.cupy.get_default_memory_pool().total_bytes()
    # Linux reports kilobytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
