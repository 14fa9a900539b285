"""The orders of ``divisible control``, in a trainer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from chainer.training import Extension, Trainer

from divisible.side_files import SideFiles
from pipeline.trainer_lines import say
from pipeline.training.control_files import Progress, Wishes, read, write
from pipeline.training.one_trainer import TriggerAround
from pipeline.training.signals import record_stop, saved_words

# The number that stops a trainer for an order; numbers of signals are smaller.
_STOP = 1000
_BY = "divisible control"
# Words in the names of the extensions that an order to save runs.
_SAVES = ("snapshot",)
_SECONDS_BETWEEN_LOOKS = 0.5


class ObeyOrders(Extension):
    """Saves a snapshot, or stops the training, when ``divisible control`` asks for it.

    ``PipelineUpdater`` adds it to its trainer under ``divisible run --keep-going``.
    Rank 0 looks for orders after a minibatch, twice a second at most, and the ranks
    agree with the numbers that each update exchanges anyway.

    Args:
        folder (str or path-like): The run's directory.
    """

    name = "obey_orders"
    trigger = 1, "iteration"
    # After snapshots.
    priority = -1000

    def __init__(self, folder: str | os.PathLike) -> None:
        self._folder = Path(folder)
        self._files = SideFiles("the progress of the run", "Give another --control.")
        self._start = self._passed_on = 0
        # Numbers of ordered snapshots: begun, and finished; and the iteration of the
        # newest, if it is not finished.
        self._n_fired = self._n_taken = 0
        self._fired_at: int | None = None
        self._next_look = 0.0
        self._words = ""
        # The stopped trainer, and the exception that was handled when it started.
        self._stopped: Trainer | None = None
        self._handled: BaseException | None = None

    def initialize(self, trainer: Trainer) -> None:
        """Makes extensions that save obey orders; called when training starts."""
        self._handled = sys.exc_info()[1]
        self._n_fired = self._n_taken = trainer.updater.n_snapshots_requested
        for name, entry in trainer._extensions.items():
            if any(word in name.lower() for word in _SAVES):
                entry.trigger = _AlsoOnOrder(entry.trigger, self._n_fired)
        if self._is_chief(trainer):
            wishes = self._wishes()
            self._start = wishes.start if wishes is not None else 0
            self._report(trainer)

    def __call__(self, trainer: Trainer) -> None:
        """Looks for orders on rank 0; called after every minibatch."""
        updater = trainer.updater
        stops = updater.stop_code == _STOP
        if stops:
            record_stop(_BY)
            self._stopped = trainer
        if not self._is_chief(trainer):
            return
        if updater.n_snapshots_requested > self._n_fired or stops:
            self._n_fired, self._fired_at = (
                updater.n_snapshots_requested,
                updater.iteration,
            )
        elif time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        if not stops:
            # Before a stop, a snapshot or a copy may be made at the very end.
            self._count_saved(trainer)
        self._report(trainer)
        wishes = self._wishes()
        # A rank of an earlier start, on a host that was out of reach, has no orders.
        if wishes is None or wishes.start != self._start:
            return
        if wishes.stop:
            updater.request_stop(_STOP)
        while self._passed_on < wishes.saves:
            self._passed_on += 1
            updater.request_snapshot()

    def finalize(self) -> None:
        """Prints where the run was saved, if it was stopped; called at the end."""
        trainer, self._stopped = self._stopped, None
        if trainer is None or not self._is_chief(trainer):
            return
        if sys.exc_info()[1] is self._handled:
            # Snapshots that were written in the background are there by now.
            self._count_saved(trainer)
            self._report(trainer)
            begin = f"stopped by {_BY} after iteration {trainer.updater.iteration}"
            say(trainer, f"{begin}: {saved_words(trainer, _SAVES)}")

    def _count_saved(self, trainer: Trainer) -> None:
        """Counts an ordered snapshot as taken, once it is there or has failed."""
        if self._fired_at is None:
            return
        words, *_ = saved_words(trainer, _SAVES).split("; to go on")
        for entry in trainer._extensions.values():
            path = getattr(entry.extension, "saved_to", "")
            if path is None:
                words = "nothing was saved, for the reason that the run has printed"
            elif path and not os.path.exists(path):
                # The snapshot is being written in the background.
                return
        self._words = f"{words}, at iteration {self._fired_at}"
        self._n_taken, self._fired_at = self._n_fired, None

    def _wishes(self) -> Wishes | None:
        try:
            return read(self._folder, Wishes)
        except OSError:
            # A shared file system may fail for a while.
            return None

    def _report(self, trainer: Trainer) -> None:
        updater = trainer.updater
        with self._files.writing(self._folder):
            write(
                self._folder,
                Progress(
                    self._start,
                    updater.iteration,
                    float(updater.epoch_detail),
                    time.time(),
                    self._n_taken,
                    self._words,
                ),
            )

    def _is_chief(self, trainer: Trainer) -> bool:
        return trainer.updater.pipeline.is_chief


class _AlsoOnOrder(TriggerAround):
    """A trigger that also fires on an order to save, and before a stop."""

    def __init__(self, trigger: Any, n_fired: int) -> None:
        super().__init__(trigger)
        self._n_fired = n_fired

    def __call__(self, trainer: Trainer) -> bool:
        updater = trainer.updater
        fires = bool(self._trigger(trainer)) or updater.stop_code == _STOP
        if updater.n_snapshots_requested > self._n_fired:
            self._n_fired, fires = updater.n_snapshots_requested, True
        return fires
