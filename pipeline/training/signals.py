"""Stopping a training run from outside: all ranks, at the same minibatch."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

from chainer.training import Extension, Trainer

from pipeline.trainer_lines import say
from pipeline.training.one_trainer import TriggerAround

#: The exit code of ``divisible run`` after a signal stopped the training in good
#: order: EX_TEMPFAIL of ``sysexits.h``, "try again later".
STOPPED = 75

# Whether a signal or an order has stopped a training run in this process.
_has_stopped = False
_stopped_by = "a signal"


def has_stopped() -> bool:
    """Returns whether a signal or an order has stopped a run in this process."""
    return _has_stopped


def stopped_by() -> str:
    """Returns words for what has stopped a run in this process."""
    return _stopped_by


def record_stop(by: str = "a signal") -> None:
    """Records that a training run in this process was stopped from outside.

    Args:
        by: Words for what stopped it.
    """
    global _has_stopped, _stopped_by
    _has_stopped, _stopped_by = True, by


class StopOnSignal(Extension):
    """Stops the training in good order when a batch system asks for it.

    When a signal comes to any of the ranks, they finish the minibatch and agree to
    stop. Extensions that take snapshots run, also if it is not their time. Then the
    trainer's loop ends on every rank, and the script goes on after ``trainer.run()``.
    Under ``divisible run`` its exit code is then 75, so that a job script knows that
    the training is not complete. In other scripts, read :attr:`signal` and exit with a
    code of your own. Rank 0 prints where the run was saved, and how to resume it.

    A second signal ends the run, as it would without this extension. But MPICH handles
    SIGUSR1 and ignores it, so without this extension it ends ranks only under
    ``divisible run``.

    Args:
        signals: Signals to stop on. Batch systems send SIGTERM, and SIGUSR1 if asked
            to.
        run (list of str): Words in the names of the extensions to run before the end.

    Attributes:
        signal (int): Number of the signal that stopped the training, the same on every
            rank; 0 if none did.

    Example:
        >>> from pipeline import StopOnSignal
        >>> stop = StopOnSignal()   # trainer.extend(stop)
        >>> stop.signal
        0
    """

    name = "stop_on_signal"
    # After reports and snapshots.
    priority = -1000

    def __init__(
        self,
        *,
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGUSR1),
        run: Sequence[str] = ("snapshot",),
    ) -> None:
        self._signals = tuple(signals)
        self._run = tuple(word.lower() for word in run)
        self._handlers: dict[int, Any] = {}
        # The stopped trainer, and the exception that was handled when it started.
        self._stopped: Trainer | None = None
        self._handled: BaseException | None = None
        self.signal = 0

    def initialize(self, trainer: Trainer) -> None:
        """Installs the handlers; called by the trainer when it starts.

        Raises:
            TypeError: If the trainer's updater is not a ``PipelineUpdater``.
        """
        self._handled = sys.exc_info()[1]
        updater = trainer.updater
        if not hasattr(updater, "request_stop"):
            raise TypeError(
                f"StopOnSignal needs a trainer with a PipelineUpdater, not a"
                f" {type(updater).__name__}"
            )

        def handle(number: int, frame: Any) -> None:
            updater.request_stop(number)
            self._restore()

        for number in self._signals:
            self._handlers[number] = signal.signal(number, handle)
        for name, entry in trainer._extensions.items():
            if any(word in name.lower() for word in self._run):
                entry.trigger = _AlsoAtStop(entry.trigger)

    def __call__(self, trainer: Trainer) -> None:
        """Records whether a signal came; called after every minibatch."""
        if trainer.updater.stop_code in self._signals:
            self.signal = trainer.updater.stop_code
            record_stop()
            self._stopped = trainer

    def finalize(self) -> None:
        """Restores the signals' handlers; called at the end of the loop."""
        self._restore()
        trainer, self._stopped = self._stopped, None
        if trainer is None or not trainer.updater.pipeline.is_chief:
            return
        # Threads that write snapshots have ended by now, with success or an error.
        if sys.exc_info()[1] is self._handled:
            say(trainer, self._words(trainer))

    def _words(self, trainer: Trainer) -> str:
        """Returns a line about where a run was saved, and how to go on."""
        name = signal.Signals(self.signal).name
        begin = f"stopped by {name} after iteration {trainer.updater.iteration}"
        return f"{begin}: {saved_words(trainer, self._run)}"

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def saved_words(trainer: Trainer, run: Sequence[str]) -> str:
    """Returns words about where a stopped run was saved, and how to go on.

    Args:
        trainer: The trainer.
        run: Words in the names of the extensions that have run before the end.
    """
    extensions = [
        (name, entry.extension) for name, entry in trainer._extensions.items()
    ]
    for _, extension in extensions:
        path = getattr(extension, "saved_to", None)
        if path is not None:
            words = f"start with snapshot(resume={str(path)!r})"
            if extension.resume == "auto":
                words = "start the same command again"
            return f"saved in {path}; to go on, {words}"
        if getattr(extension, "is_kept", False):
            words = "start with memory_copies(resume='auto')"
            if extension.resume == "auto":
                words = "start the same command again"
            return f"a copy stays in the memory of hosts; to go on, {words}"
    ran = [n for n, _ in extensions if any(w in n.lower() for w in run)]
    if ran:
        return f"the extension {ran[0]} has run"
    return (
        "nothing was saved. Extend the trainer with pipeline.snapshot(resume='auto')"
        " to go on next time"
    )


class _AlsoAtStop(TriggerAround):
    """A trigger that also fires when the training is about to stop."""

    def __call__(self, trainer: Trainer) -> bool:
        return bool(self._trigger(trainer)) or trainer.updater.stop_code > 0
