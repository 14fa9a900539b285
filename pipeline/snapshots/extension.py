"""Snapshots as an extension of Chainer's trainer."""

from __future__ import annotations

import contextlib
import glob
import os
import string
import sys
import time
import warnings
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from chainer import training

from divisible.planning.units import count
from pipeline.pipeline import Pipeline
from pipeline.snapshots.background import settle
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import latest_on_all_ranks
from pipeline.snapshots.loading import load_snapshot
from pipeline.snapshots.names import check_name
from pipeline.snapshots.saving import save
from pipeline.trainer_lines import say


def snapshot(
    filename: str | Callable[[Any], str] = "snapshot_iter_{.updater.iteration}",
    *,
    pipeline: Pipeline | None = None,
    n_retains: int = -1,
    resume: str | os.PathLike | None = None,
    on_error: str = "raise",
    condition: Callable[[], bool] | None = None,
    strict: bool = True,
    background: bool = False,
) -> SnapshotExtension:
    """Returns a trainer extension that saves the training run, and continues it.

    What :func:`chainer.training.extensions.snapshot` is for one process; extend the
    trainers of all ranks with it. In place of its ``autoload=True`` give
    ``resume='auto'``. A snapshot is a directory in ``trainer.out``, saved once per
    epoch unless another ``trigger`` is given; :func:`~pipeline.save_snapshot` tells
    what is in it.

    With ``resume`` the snapshot is loaded when the trainer's ``run`` begins, after
    other extensions have initialized themselves, hyperparameters included: a learning
    rate that an extension has lowered is the lowered one. That is on any number of
    stages. Rank 0 prints which snapshot it was.

    Args:
        filename: Name of the snapshot in ``trainer.out``: a format string that is given
            the trainer, or a function of the trainer.
        pipeline (Pipeline): Left out, the updater's attribute ``pipeline``.
        n_retains (int): How many snapshots to keep of those whose names differ in
            numbers only, also in those of folders; at most 0 for all.
        resume: ``'auto'`` for the newest whole snapshot in ``trainer.out`` whose name
            fits ``filename``, if there is one, with a warning of newer ones that are
            damaged; the path of a snapshot; ``None`` to begin anew.
        on_error (str): What to do on every rank when saving failed on one, for instance
            for a full disk: ``'raise'`` stops with a
            :class:`~pipeline.SnapshotError`, ``'warn'`` warns and goes on. The
            snapshots that were there stay.
        condition: If given and it returns False, no snapshot is taken. It must return
            the same on all ranks.
        strict (bool): Whether to refuse a snapshot that has more than the run, or less;
            see :func:`~pipeline.load_snapshot`.
        background (bool): Whether the files are written while the training goes on; see
            :func:`~pipeline.save_snapshot`. What has failed is known, and ``on_error``
            done, when the next snapshot is taken, and at the end of the trainer's run,
            which waits for what is being written.

    Returns:
        SnapshotExtension: The extension. Calling it with the trainer saves at once.

    Raises:
        TypeError: If ``filename`` is neither a text nor a function.
        ValueError: If ``on_error`` is something else, or snapshots with such a
            ``filename`` could not be resumed: an absolute path, an empty one, or one
            that ends in ``.``, ``..``, ``.partial`` or ``.replaced``. What a function
            returns is looked at when the first snapshot is saved.

    Example:
        >>> extension = snapshot(n_retains=3, resume='auto', on_error='warn')
        >>> extension.trigger
        (1, 'epoch')
    """
    if on_error not in ("raise", "warn"):
        raise ValueError(f"on_error must be 'raise' or 'warn', not {on_error!r}")
    check_filename(filename)
    return SnapshotExtension(
        filename,
        pipeline,
        n_retains,
        resume,
        on_error,
        condition,
        strict,
        background,
    )


@dataclass(eq=False)
class SnapshotExtension(training.Extension):
    """The extension that :func:`snapshot` returns, with its arguments.

    Attributes:
        resumed_from: The snapshot that the run was continued from, if any.
        saved_to: The snapshot that was taken last, if it did not fail.
    """

    filename: str | Callable[[Any], str]
    pipeline: Pipeline | None
    n_retains: int
    resume: str | os.PathLike | None
    # Extensions have a method that is called on_error.
    when_failed: str
    condition: Callable[[], bool] | None
    strict: bool
    background: bool
    resumed_from: Path | None = field(default=None, init=False)
    saved_to: Path | None = field(default=None, init=False)
    # The pipeline and the trainer that were saved, and the exception during which the
    # trainer runs.
    _saved: Pipeline | None = field(default=None, init=False)
    _trainer: weakref.ref[Any] | None = field(default=None, init=False)
    _handled: BaseException | None = field(default=None, init=False)

    #: To be called on all ranks at the same minibatch, whatever its trigger.
    is_collective = True
    trigger = 1, "epoch"
    # After all others: their state is part of the snapshot.
    priority = -100
    default_name = "snapshot"

    def initialize(self, trainer: Any) -> None:
        """Loads the snapshot to continue from."""
        self._handled = sys.exc_info()[1]
        if self.resume is None:
            return
        pipe = self._find_pipeline(trainer)
        path = self.resume if self.resume != "auto" else self._latest(trainer, pipe)
        if path is not None:
            found = load_snapshot(
                path,
                pipe,
                _optimizers(trainer),
                state={"trainer": trainer},
                strict=self.strict,
            )
            self.resumed_from = Path(path)
            if pipe.is_chief:
                say(trainer, _resumed(found, trainer, pipe))

    def _latest(self, trainer: Any, pipe: Pipeline) -> Path | None:
        among = self._among(trainer) or (trainer.out, "*")
        return latest_on_all_ranks(pipe, *among)

    def __call__(self, trainer: Any) -> None:
        """Saves a snapshot."""
        if self.condition is not None and not self.condition():
            return
        name = self._name(trainer)
        self._saved, self._trainer = self._find_pipeline(trainer), weakref.ref(trainer)
        self.saved_to = Path(trainer.out, name)
        save(
            os.path.join(trainer.out, name),
            self._saved,
            _optimizers(trainer),
            state={"trainer": trainer},
            n_retains=self.n_retains,
            background=self.background,
            report=self._report,
            among=self._among(trainer),
        )

    def _among(self, trainer: Any) -> tuple[str, str] | None:
        """Returns where its snapshots are and what they are called, if that is known.

        What a function returns may lie anywhere.
        """
        if callable(self.filename):
            return None
        return trainer.out, pattern_of(self.filename)

    def finalize(self) -> None:
        """Waits for what is being written, when the training has ended well."""
        # After an error the other ranks are elsewhere, and cannot agree.
        if self._saved is None or sys.exc_info()[1] is not self._handled:
            return
        with contextlib.ExitStack() as others:
            # A trainer leaves out what comes after an extension that raises, such as
            # the end of an iterator's processes.
            for finalize in reversed(self._finalized_later()):
                others.callback(finalize)
            settle(self._saved)
            others.pop_all()

    def _finalized_later(self) -> list[Callable[[], None]]:
        """Returns what the trainer calls after this one's, in its order."""
        trainer = self._trainer()
        entries = sorted(
            trainer._extensions.values(), key=lambda each: each.priority, reverse=True
        )
        extensions = [each.extension for each in entries]
        later = extensions[extensions.index(self) + 1 :]
        found = [getattr(each, "finalize", None) for each in later]
        return [each for each in (*found, trainer.updater.finalize) if each]

    def _report(self, error: SnapshotError) -> None:
        self.saved_to = None
        if self.when_failed == "raise":
            raise error
        if self._saved is not None and self._saved.is_chief:
            warnings.warn(f"training goes on, but {error}", stacklevel=2)

    def _name(self, trainer: Any) -> str:
        named = callable(self.filename)
        name = self.filename(trainer) if named else self.filename.format(trainer)
        check_relative_name(name)
        if named and self.resume == "auto" and os.path.dirname(name):
            raise ValueError(
                f"a function named the snapshot {name!r}, but resume='auto' finds what"
                f" it names in trainer.out itself only: give a format string"
            )
        return name

    def _find_pipeline(self, trainer: Any) -> Pipeline:
        pipe = self.pipeline or getattr(trainer.updater, "pipeline", None)
        if not isinstance(pipe, Pipeline):
            raise TypeError(
                f"{type(trainer.updater).__name__} has no attribute 'pipeline': give"
                f" snapshot(pipeline=...) the Pipeline"
            )
        return pipe


def _resumed(found: Snapshot, trainer: Any, pipe: Pipeline) -> str:
    """Returns in a line what a run goes on from."""
    n_saved, n_now = found.n_ranks * found.n_replicas, pipe.internals.ranks.world.size
    return (
        f"resumed from {found.path}: iteration {trainer.updater.iteration}, saved"
        f" {_age(time.time() - found.time)} ago on {count(n_saved, 'rank')}; the"
        f" training goes on with {count(n_now, 'rank')}"
    )


def _age(seconds: float) -> str:
    """Returns how old something is, in the unit of which there are a few.

    Example:
        >>> _age(-3.0), _age(100), _age(600), _age(10_000), _age(400_000)
        ('0 seconds', '100 seconds', '10 minutes', '167 minutes', '5 days')
    """
    # Clocks of hosts differ.
    value, unit = max(0.0, seconds), "second"
    for size, larger in ((60, "minute"), (60, "hour"), (24, "day")):
        if value < 3 * size:
            break
        value, unit = value / size, larger
    return count(round(value), unit)


def _optimizers(trainer: Any) -> list[Any]:
    return list(trainer.updater.get_all_optimizers().values())


def check_filename(filename: str | Callable[[Any], str]) -> None:
    """Refuses names that a trainer would save under and could not resume from.

    Raises:
        TypeError: If it is neither a text nor a function.
        ValueError: If it is no format string, one of another number of things than the
            trainer, an absolute path or no name.
    """
    if callable(filename):
        return
    if not isinstance(filename, str):
        raise TypeError(
            f"filename must be a format string or a function of the trainer, not"
            f" {filename!r}"
        )
    pattern_of(filename)
    fields = [field for _, field, *_ in string.Formatter().parse(filename)]
    n_unnumbered = sum(field is not None and field[:1] in ("", ".") for field in fields)
    if n_unnumbered > 1:
        raise ValueError(
            f"{filename!r} has {n_unnumbered} fields without a number, and there is but"
            f" one trainer: write {{0.updater.iteration}} and so on"
        )
    check_relative_name(filename)


def check_relative_name(name: str) -> None:
    """Refuses what is no name for a snapshot below ``trainer.out``.

    Raises:
        ValueError: If it is an absolute path or no name.
    """
    if os.path.isabs(name):
        raise ValueError(
            f"{name!r} is no name for a snapshot: it is an absolute path, and snapshots"
            f" are saved in trainer.out; give the trainer another out"
        )
    check_name(name)


def pattern_of(filename: str) -> str:
    """Returns the pattern, with ``*``, of the names that a format string makes.

    Raises:
        ValueError: If it is no format string.

    Example:
        >>> pattern_of('iter_{.updater.iteration}')
        'iter_*'
    """
    try:
        parts = list(string.Formatter().parse(filename))
    except ValueError as error:
        raise ValueError(f"{filename!r} is no format string: {error}") from error
    return "".join(
        glob.escape(text) + ("" if field is None else "*") for text, field, *_ in parts
    )
