"""Copies in memory, as an extension of Chainer's trainer."""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chainer import training

from divisible.keywords import names_keywords
from pipeline.between_steps import BetweenSteps
from pipeline.copies.pace import Pace
from pipeline.snapshots.background import settle
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.extension import SnapshotExtension
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import age, open_on_all_ranks
from pipeline.snapshots.trainers import (
    calling_others,
    optimizers_of,
    pipeline_of,
    refuse_late_gradients,
    resumed,
)
from pipeline.trainer_lines import say


@names_keywords
def memory_copies(
    every: int | str = 1,
    *,
    pipeline: BetweenSteps | None = None,
    directory: str | os.PathLike | None = None,
    resume: str | None = "auto",
    on_error: str = "raise",
    strict: bool = True,
) -> CopiesExtension:
    """Returns a trainer extension that copies the run to the memory of hosts.

    Each copy has the state that :func:`~pipeline.snapshot` saves. A rank's part lies in
    the memory of its own host and of a partner's host. It travels to the partner while
    the next minibatch is computed. So the run goes on after the loss of a process, or
    of a host. With a copy of every minibatch, it repeats one complete
    minibatch at most. If all ranks are on one host, there is no partner: a copy then
    outlives processes only. Add :func:`~pipeline.snapshot` for the loss of several
    hosts at once.

    Two whole copies are kept. They are removed when the trainer's run has ended well.
    If it was killed, they are removed when it was started again and has made others.
    Another run of the same user removes them after an hour, or after a minute if it has
    no room otherwise.

    Args:
        every (int or 'auto'): Number of minibatches from one copy to the next.
            ``'auto'`` measures copies and minibatches, and makes as many copies as take
            3 % of the time, at most.
        pipeline (Pipeline): The pipeline; by default the updater's ``pipeline``.
        directory: Directory in memory; by default ``/dev/shm``. Each rank may have
            another. Ranks of a host with the same one share a place, which is lost as a
            whole.
        resume: ``'auto'`` to go on from the newest state when the trainer's ``run``
            begins. That is the newest whole copy of a run with the same
            ``trainer.out``, on any number of ranks. If the trainer's
            :func:`~pipeline.snapshot` resumes from a newer snapshot, it is that one.
            ``None`` to load no copy.
        on_error (str): Action on every rank if a copy failed on one, for instance
            because the memory is full. ``'raise'`` stops with a
            :class:`~pipeline.SnapshotError`, ``'warn'`` warns and continues. Earlier
            copies stay.
        strict (bool): Whether to refuse a copy that does not have exactly the keys of
            the run; see :func:`~pipeline.load_snapshot`.

    Returns:
        CopiesExtension: The extension. Calling it with the trainer makes a copy.

    Raises:
        TypeError: If ``every`` is neither an integer nor a text.
        ValueError: If ``every`` is less than 1, or ``on_error`` or ``resume`` is
            something else.

    Example:
        >>> extension = memory_copies(every=10)
        >>> extension.trigger
        (10, 'iteration')
    """
    if not isinstance(every, (int, str)) or isinstance(every, bool):
        raise TypeError(f"every must be an integer or 'auto', not {every!r}")
    if every != "auto" and (isinstance(every, str) or every < 1):
        raise ValueError(f"every must be 'auto' or at least 1, not {every!r}")
    if on_error not in ("raise", "warn"):
        raise ValueError(f"on_error must be 'raise' or 'warn', not {on_error!r}")
    if resume not in ("auto", None):
        raise ValueError(
            f"resume must be 'auto' or None, not {resume!r}: a path is for snapshot()"
        )
    extension = CopiesExtension(pipeline, directory, resume, on_error, strict)
    if every == "auto":
        extension.pace = Pace()
    else:
        extension.trigger = every, "iteration"
    return extension


@dataclass(eq=False)
class CopiesExtension(training.Extension):
    """The extension that :func:`memory_copies` returns, with its arguments.

    Attributes:
        resumed_from (Snapshot or None): Copy that the run was resumed from, if any.
        pace (Pace or None): The choice of minibatches to copy, with ``every='auto'``.
        is_kept (bool): Whether a copy stays in memory, after a run that was stopped.
    """

    pipeline: BetweenSteps | None
    directory: str | os.PathLike | None
    resume: str | None
    # chainer.training.Extension has a method called on_error.
    when_failed: str
    strict: bool
    resumed_from: Snapshot | None = field(default=None, init=False)
    pace: Pace | None = field(default=None, init=False)
    is_kept: bool = field(default=False, init=False)
    # End of the last copy, and the minibatch after which it was made.
    _last: tuple[float, int] | None = field(default=None, init=False)
    # The pipeline and the trainer that started, and the exception that was being
    # handled then.
    _pipe: BetweenSteps | None = field(default=None, init=False)
    _trainer: weakref.ref[Any] | None = field(default=None, init=False)
    _handled: BaseException | None = field(default=None, init=False)

    #: Whether all ranks must call it at the same minibatch, whatever its trigger.
    is_collective = True
    trigger = 1, "iteration"
    # After all other extensions, whose state is part of the copy; but before
    # snapshot(), which must not load an older state.
    priority = -99
    default_name = "memory_copies"

    def initialize(self, trainer: Any) -> None:
        """Loads the newest copy, unless a snapshot of the trainer is newer.

        Raises:
            ValueError: If the schedule has two weight versions.
        """
        self._handled = sys.exc_info()[1]
        pipe = pipeline_of(trainer, self.pipeline, "memory_copies")
        refuse_late_gradients(pipe, "memory_copies")
        self._pipe, self._trainer = pipe, weakref.ref(trainer)
        pipe.copies.open(os.path.abspath(trainer.out), self.directory)
        if self.resume is None:
            return
        found = pipe.copies.newest()
        on_disk = _newest_on_disk(trainer, pipe)
        if on_disk is not None:
            pipe.copies.follow(on_disk)
        if found is None or (on_disk and age(found.snapshot) < age(on_disk)):
            return
        for extension in _snapshots(trainer):
            extension.give_way()
        state = {"trainer": trainer}
        optimizers = optimizers_of(trainer)
        loaded = pipe.copies.load_found(found, optimizers, state, self.strict)
        self.resumed_from = loaded
        if pipe.is_chief:
            say(trainer, resumed(loaded, trainer, pipe, "the memory of hosts"))

    def __call__(self, trainer: Any) -> None:
        """Makes a copy, unless the pace leaves this minibatch out."""
        if self.pace is not None and not self.pace.is_due():
            return
        begin = time.perf_counter()
        pipe = pipeline_of(trainer, self.pipeline, "memory_copies")
        pipe.copies.open(os.path.abspath(trainer.out), self.directory)
        try:
            self._save(trainer, pipe)
        except SnapshotError as error:
            if self.when_failed == "raise":
                raise
            if pipe.is_chief:
                warnings.warn(f"training goes on, but {error}", stacklevel=2)
        if self.pace is not None:
            self._choose(self.pace, pipe, begin)

    def _save(self, trainer: Any, pipe: BetweenSteps) -> None:
        pipe.copies.save(optimizers_of(trainer), state={"trainer": trainer})

    def _choose(self, pace: Pace, pipe: BetweenSteps, begin: float) -> None:
        """Chooses the minibatch to copy next, from the times of this copy."""
        end, step = time.perf_counter(), 0.0
        if self._last is not None and pipe.n_steps > self._last[1]:
            step = (begin - self._last[0]) / (pipe.n_steps - self._last[1])
        self._last = end, pipe.n_steps
        pace.note(pipe.internals.gather((end - begin, step), "save"))

    def finalize(self) -> None:
        """Removes the copies, if training has ended well.

        After a signal, a last copy stays if there is no snapshot, so that the same
        command can go on from it.
        """
        # After an error, the other ranks are elsewhere, and the copies are needed.
        if self._pipe is None or sys.exc_info()[1] is not self._handled:
            return
        trainer = self._trainer()
        with calling_others(self, trainer):
            # If a snapshot in the background fails, the copies are needed.
            settle(self._pipe)
            is_stopped = getattr(trainer.updater, "stop_code", 0) > 0
            if is_stopped and not any(each.saved_to for each in _snapshots(trainer)):
                self._save(trainer, self._pipe)
                self._pipe.copies.keep()
                self.is_kept = True
            else:
                self._pipe.copies.free()


def _snapshots(trainer: Any) -> Iterator[SnapshotExtension]:
    """Yields the extensions of a trainer that save snapshots on disk."""
    for entry in trainer._extensions.values():
        if isinstance(entry.extension, SnapshotExtension):
            yield entry.extension


def _newest_on_disk(trainer: Any, pipe: BetweenSteps) -> Snapshot | None:
    """Returns the newest of the snapshots that a trainer is to resume from, if any."""
    paths = [each.look(trainer) for each in _snapshots(trainer)]
    opened = [open_on_all_ranks(pipe, path) for path in paths if path is not None]
    return max(opened, key=age, default=None)
