"""Steps that have taken known times, whatever the machine was doing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import chainer

from divisible import Divisible
from divisible.schedules import Action
from pipeline.rebalancing import common_layer
from pipeline.rebalancing.layer_costs import LayerCosts

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


@contextlib.contextmanager
def told_layers(seconds: Callable[[int], float]) -> Iterator[None]:
    """Lets layers have taken known times, in training and where ranks are compared.

    What is measured is computed nevertheless.

    Args:
        seconds: Returns the seconds of a layer on this rank, by its position.
    """
    said, compared = LayerCosts.said, common_layer.seconds_of

    def told(costs: LayerCosts) -> Any:
        found = said(costs)
        return found._replace(forwards={i: seconds(i) for i in found.forwards})

    def of_common_layer(model: Divisible, chosen: common_layer.CommonLayer) -> float:
        compared(model, chosen)
        return seconds(chosen.position)

    with (
        mock.patch.object(LayerCosts, "said", told),
        mock.patch.object(common_layer, "seconds_of", of_common_layer),
        mock.patch.object(common_layer, "_PART", 0.0),
    ):
        yield
