"""Texts about triggers: those with equal texts fire at the same minibatches."""

from __future__ import annotations

from typing import Any

from chainer.training import triggers

# Triggers that fire alike on all ranks if they have the same settings.
_BY_TIME = (
    triggers.IntervalTrigger,
    triggers.ManualScheduleTrigger,
    triggers.OnceTrigger,
)
# Beginnings of names of values that are equal on all ranks.
_ALIKE = ("main/", "validation/main/")


def is_by_time(trigger: Any) -> bool:
    """Returns whether a trigger depends on the iterator's progress alone."""
    return type(trigger) in _BY_TIME


def text_of(trigger: Any) -> str | None:
    """Returns a text about a trigger; ``None`` if ranks may differ in spite of it.

    Args:
        trigger: A trigger of an extension, or the stop trigger of a trainer.

    Example:
        >>> text_of(triggers.IntervalTrigger(2, "epoch"))
        "IntervalTrigger: [('count', 0), ('period', 2), ('unit', 'epoch')]"
    """
    if is_by_time(trigger):
        settings = {k: v for k, v in vars(trigger).items() if k[0] != "_"}
        return f"{type(trigger).__name__}: {sorted(settings.items())}"
    if type(trigger) is not triggers.EarlyStoppingTrigger:
        return None
    times = text_of(trigger._interval_trigger), text_of(trigger._max_trigger)
    if None in times or not trigger.monitor.startswith(_ALIKE):
        return None
    compares = trigger._compare.__name__
    return (
        f"EarlyStoppingTrigger: {trigger.monitor} {compares}, patience"
        f" {trigger.patience}, {'; '.join(times)}"
    )
