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

# Whether that has happened in this process.
_has_stopped = False


def has_stopped() -> bool:
    """Returns whether a signal has stopped a training run in this process."""
    return _has_stopped


class StopOnSignal(Extension):
    """Stops the training in good order when a batch system asks for it.

    On a signal to any of the ranks, the minibatch under way is finished; all ranks
    agree; extensions that take snapshots run, whether it is their time or not; the
    trainer's loop ends on every rank, and the script goes on after ``trainer.run()``.
    Under ``divisible run`` its exit code is then 75, so that a job script knows
    that there is more to do; elsewhere ask :attr:`signal` and exit as you like. Rank 0
    prints where the run was saved, and how to go on.

    A second signal ends the run, as the signal does without this extension; but without
    it SIGUSR1 ends ranks of MPICH only under ``divisible run``, since MPICH handles it
    and does nothing.

    Args:
        signals: The signals to stop on; batch systems send SIGTERM, and SIGUSR1 if
            asked to.
        run (list of str): The extensions to run before the end: those whose names
            contain one of these words.

    Attributes:
        signal (int): The number of the signal that stopped the training, the same on
            every rank; 0 if none did.

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
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGUSR1),
        run: Sequence[str] = ("snapshot",),
    ) -> None:
        self._signals = tuple(signals)
        self._run = tuple(word.lower() for word in run)
        self._handlers: dict[int, Any] = {}
        # The trainer that was stopped, and the exception during which it runs.
        self._stopped: Trainer | None = None
        self._handled: BaseException | None = None
        self.signal = 0

    def initialize(self, trainer: Trainer) -> None:
        """Installs the handlers; called by the trainer when it starts.

        Raises:
            TypeError: If the trainer's updater is no ``PipelineUpdater``.
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
        """Notes whether a signal came; called after every minibatch."""
        global _has_stopped
        if trainer.updater.stop_code in self._signals:
            self.signal = trainer.updater.stop_code
            _has_stopped = True
            self._stopped = trainer

    def finalize(self) -> None:
        """Gives the signals their handlers back; called at the end of the loop."""
        self._restore()
        trainer, self._stopped = self._stopped, None
        if trainer is None or not trainer.updater.pipeline.ranks.is_chief:
            return
        # A thread has saved by now what it was writing, or has failed.
        if sys.exc_info()[1] is self._handled:
            say(trainer, self._words(trainer))

    def _words(self, trainer: Trainer) -> str:
        """Returns in a line where a run was saved, and how to go on."""
        name = signal.Signals(self.signal).name
        begin = f"stopped by {name} after iteration {trainer.updater.iteration}: "
        extensions = [
            (name, entry.extension) for name, entry in trainer._extensions.items()
        ]
        for _, extension in extensions:
            path = getattr(extension, "saved_to", None)
            if path is not None:
                words = f"start with snapshot(resume={str(path)!r})"
                if extension.resume == "auto":
                    words = "start the same command again"
                return f"{begin}saved in {path}; to go on, {words}"
        ran = [n for n, _ in extensions if any(w in n.lower() for w in self._run)]
        if ran:
            return f"{begin}the extension {ran[0]} has run"
        return (
            f"{begin}nothing was saved. Extend the trainer with"
            f" pipeline.snapshot(resume='auto') to go on next time"
        )

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


class _AlsoAtStop(TriggerAround):
    """A trigger that fires besides when the training is about to stop."""

    def __call__(self, trainer: Trainer) -> bool:
        return bool(self._trigger(trainer)) or trainer.updater.stop_code > 0
