"""Trainers that are loaded before they run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from chainer import training

_SCRIPT, _LOADED = "hyperparameters of the script", "hyperparameters that were loaded"


@contextmanager
def loaded_as_if_running(
    objects: Mapping[str, Any], optimizers: Sequence[Any]
) -> Iterator[None]:
    """Loads trainers that have not started as those are loaded that have.

    When a trainer starts, extensions such as ``ExponentialShift`` note the value that
    they begin with, and some set it. If the lowered learning rate of a snapshot were
    there by then, it would be lowered twice. So it is put aside meanwhile::

        load        learning rate of the snapshot; a script may set another one
        run         that of the script before it loaded
                    extensions initialize themselves
                    that of the snapshot, or the other one

    Args:
        objects: Among others the trainers.
        optimizers: Whose hyperparameters the block loads.
    """
    waiting = [
        trainer
        for trainer in objects.values()
        if isinstance(trainer, training.Trainer) and trainer._start_at is None
    ]
    script = [(each.hyperparam, each.hyperparam.get_dict()) for each in optimizers]
    yield
    for trainer in waiting:
        if _SCRIPT not in trainer._extensions:
            begin = _SetToScripts()
            trainer.extend(begin, name=_SCRIPT)
            trainer.extend(_SetBack(begin), name=_LOADED)
        trainer.get_extension(_SCRIPT).add(script)


class _AtStart(training.Extension):
    """Does something when a trainer starts, and nothing later."""

    def trigger(self, trainer: Any) -> bool:
        return False


class _SetToScripts(_AtStart):
    """Sets hyperparameters to what they were before they were loaded."""

    priority = math.inf

    def __init__(self) -> None:
        self._script: dict[int, tuple[Any, dict[str, Any]]] = {}
        #: What they were when the trainer started.
        self.put_aside: list[tuple[Any, dict[str, Any]]] = []

    def add(self, script: Sequence[tuple[Any, dict[str, Any]]]) -> None:
        """Adds hyperparameters; of some that are loaded again the first count."""
        for hyperparam, values in script:
            self._script.setdefault(id(hyperparam), (hyperparam, values))

    def initialize(self, trainer: Any) -> None:
        both = list(self._script.values())
        self.put_aside = [(hyperparam, hyperparam.get_dict()) for hyperparam, _ in both]
        _set(both)


class _SetBack(_AtStart):
    """Sets hyperparameters to what was put aside."""

    # After extensions that change some, and before pipeline.snapshot, which may load.
    priority = -99

    def __init__(self, begin: _SetToScripts) -> None:
        self._begin = begin

    def initialize(self, trainer: Any) -> None:
        _set(self._begin.put_aside)


def _set(values: Sequence[tuple[Any, dict[str, Any]]]) -> None:
    for hyperparam, numbers in values:
        for name, number in numbers.items():
            setattr(hyperparam, name, number)
