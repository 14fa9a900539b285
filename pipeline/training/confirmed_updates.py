"""Extensions that find the right parameters, although updates are confirmed later.

An update that goes ahead of other ranks may be corrected in the next step. Extensions
run in between. Those that may read or change parameters, or states of optimizers, wait
until the update is confirmed. The others do not wait::

    step    update    LogReport, lr shifts                          step ...
    step    update    confirmed | extensions of a script            step ...
"""

from __future__ import annotations

import sys
from typing import Any

from chainer.training import Extension, Trainer, extensions

from pipeline.training.one_trainer import TriggerAround

# Extensions that read and change neither parameters nor states of optimizers.
_KNOWN = (
    extensions.ExponentialShift,
    extensions.InverseShift,
    extensions.LinearShift,
    extensions.LogReport,
    extensions.MicroAverage,
    extensions.MultistepShift,
    extensions.PlotReport,
    extensions.PolynomialShift,
    extensions.PrintReport,
    extensions.ProgressBar,
    extensions.StepShift,
    extensions.WarmupShift,
)


class ConfirmedUpdates(Extension):
    """Confirms updates before extensions that may depend on them.

    ``PipelineUpdater`` adds this extension to its trainer, if updates of the pipeline
    may be confirmed later.
    """

    name = "confirmed_updates"
    # Last of all, because other extensions read the types of triggers.
    priority = -2_000_000

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        # The exception that was being handled when the training started.
        self._handled: BaseException | None = None

    def trigger(self, trainer: Trainer) -> bool:
        """Returns ``False``, as other extensions' triggers confirm the updates."""
        return False

    def initialize(self, trainer: Trainer) -> None:
        """Changes the triggers of extensions; called when the trainer starts."""
        self._handled = sys.exc_info()[1]
        for entry in trainer._extensions.values():
            if not (isinstance(entry.extension, _KNOWN) or _is_ours(entry.extension)):
                entry.trigger = _Confirming(entry.trigger, self._pipeline)

    def finalize(self) -> None:
        """Confirms the last update; called when the training ends."""
        # After an error, other ranks may not update any more.
        if sys.exc_info()[1] is self._handled:
            self._pipeline.confirm_update()


class _Confirming(TriggerAround):
    """A trigger that confirms the last update when it fires."""

    def __init__(self, trigger: Any, pipeline: Any) -> None:
        super().__init__(trigger)
        self._pipeline = pipeline

    def __call__(self, trainer: Trainer) -> bool:
        fires = bool(self._trigger(trainer))
        if fires:
            self._pipeline.confirm_update()
        return fires


def _is_ours(extension: Any) -> bool:
    """Returns whether an extension makes calls of the pipeline itself."""
    return type(extension).__module__.partition(".")[0] == "pipeline"
