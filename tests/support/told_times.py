"""Steps that have taken known times, whatever the machine was doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer

from divisible import Divisible
from divisible.schedules import Action

#: What a layer's part of an action takes, and a message.
SECONDS = 0.001


class Clock(chainer.training.Extension):
    """Lets a step have taken a known time, three times as long on a slow host.

    Args:
        slow_rank: The rank on that.
        begin: The iteration from which on it is slow.
        end: That from which on it is not.
        cost: Returns how many layers, as they were at first, a stage takes as long as.
    """

    trigger = 1, "iteration"
    priority = 2000

    def __init__(
        self,
        slow_rank: int,
        begin: int,
        end: int,
        cost: Callable[[Divisible], float] = len,
    ) -> None:
        self._slow_rank, self._slow = slow_rank, range(begin, end)
        self._cost = cost

    def __call__(self, trainer: Any) -> None:
        """Writes times into the record of the last step."""
        pipe = trainer.updater.pipeline
        ((_, stage),) = pipe.stages.items()
        is_slow = trainer.updater.iteration in self._slow
        slowness = 3 if is_slow and pipe.rank == self._slow_rank else 1
        seconds = SECONDS * self._cost(stage) * slowness
        times, now = [], 0.0
        for operation in pipe.internals.record.program.operations:
            took = seconds if isinstance(operation, Action) else SECONDS
            times += [now, now + took]
            now += took
        pipe.internals.step.record = pipe.internals.record._replace(times=times)
