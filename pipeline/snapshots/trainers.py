"""Trainers that are loaded before they run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from chainer import training

_FIRST, _LAST = "hyperparameters of the script", "hyperparameters that were loaded"


@contextmanager
def loaded_as_if_running(
    objects: Mapping[str, Any], optimizers: Sequence[Any]
) -> Iterator[None]:
    """Loads trainers that have not started as those are loaded that have.

    When a trainer starts, extensions such as ``ExponentialShift`` note the value that
    they begin with, and some set it. If the lowered learning rate of a snapshot were
    there by then, it would be lowered twice::

        load        learning rate of the snapshot
        run         that of the script          first of all
                    extensions initialize themselves
                    that of the snapshot        last of all

    Args:
        objects: Among others the trainers.
        optimizers: Whose hyperparameters the block loads.
    """
    waiting = [
        trainer
        for trainer in objects.values()
        if isinstance(trainer, training.Trainer) and trainer._start_at is None
    ]
    script = _Hyperparameters(optimizers, math.inf)
    yield
    loaded = _Hyperparameters(optimizers, -math.inf)
    for trainer in waiting:
        if _FIRST not in trainer._extensions:
            trainer.extend(script, name=_FIRST)
        # Loaded twice, it is what was loaded last.
        trainer._extensions.pop(_LAST, None)
        trainer.extend(loaded, name=_LAST)


class _Hyperparameters(training.Extension):
    """Sets hyperparameters to what they are now when a trainer starts."""

    def __init__(self, optimizers: Sequence[Any], priority: float) -> None:
        self.priority = priority
        self._values = [(o.hyperparam, o.hyperparam.get_dict()) for o in optimizers]

    def trigger(self, trainer: Any) -> bool:
        """Says that it has nothing to do later."""
        return False

    def initialize(self, trainer: Any) -> None:
        """Sets them."""
        for hyperparam, values in self._values:
            for name, value in values.items():
                setattr(hyperparam, name, value)
