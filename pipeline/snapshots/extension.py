"""Snapshots as an extension of Chainer's trainer."""

from __future__ import annotations

import glob
import os
import string
import sys
import warnings
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from chainer import training

from divisible.keywords import names_keywords
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.background import settle
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.finding import latest_on_all_ranks
from pipeline.snapshots.loading import load_snapshot
from pipeline.snapshots.names import check_name
from pipeline.snapshots.saving import save
from pipeline.snapshots.trainers import (
    calling_others,
    optimizers_of,
    pipeline_of,
    refuse_late_gradients,
    resumed,
)
from pipeline.trainer_lines import say


@names_keywords
def snapshot(
    filename: str | Callable[[Any], str] = "snapshot_iter_{.updater.iteration}",
    *,
    pipeline: BetweenSteps | None = None,
    n_retains: int = -1,
    resume: str | os.PathLike | None = None,
    on_error: str = "raise",
    condition: Callable[[], bool] | None = None,
    strict: bool = True,
    background: bool = False,
) -> SnapshotExtension:
    """Returns a trainer extension that saves the training run, and resumes it.

    Add it to the trainers of all ranks, in place of
    :func:`chainer.training.extensions.snapshot` for one process, and give
    ``resume='auto'`` in place of ``autoload=True``. A snapshot is a directory in
    ``trainer.out``. By default one is saved per epoch; give another ``trigger`` to
    change this. :func:`~pipeline.save_snapshot` describes its contents.

    With ``resume``, a snapshot is loaded when the trainer's ``run`` begins, after other
    extensions have initialized themselves. Hyperparameters are loaded as well, so a
    learning rate that an extension has lowered stays lowered. The number of stages may
    differ. Rank 0 prints which snapshot was loaded.

    Args:
        filename: Name of the snapshot in ``trainer.out``: a format string that gets the
            trainer, or a function of the trainer.
        pipeline (Pipeline): The pipeline; by default the updater's ``pipeline``.
        n_retains (int): Number of snapshots to keep; 0 or less keeps all. This is the
            number of those whose names, folders included, differ only in numbers.
        resume: ``'auto'`` for the newest complete snapshot in ``trainer.out`` whose
            name fits ``filename``, if there is one; newer ones that are damaged cause a
            warning. Or the path of a snapshot. ``None`` to start from the beginning.
        on_error (str): Action on every rank when saving failed on one, for instance
            because a disk is full. ``'raise'`` stops with a
            :class:`~pipeline.SnapshotError`, ``'warn'`` warns and continues. Earlier
            snapshots stay.
        condition: Function that returns whether to take a snapshot, the same on all
            ranks; ``None`` to take all.
        strict (bool): Whether to refuse a snapshot that does not have exactly the keys
            of the run; see :func:`~pipeline.load_snapshot`.
        background (bool): Whether to write the files while training continues; see
            :func:`~pipeline.save_snapshot`. A failure is then handled by ``on_error``
            when the next snapshot is taken, or at the end of the trainer's run, which
            waits for the files.

    Returns:
        SnapshotExtension: The extension. Calling it with the trainer saves at once.

    Raises:
        TypeError: If ``filename`` is neither a text nor a function.
        ValueError: If ``on_error`` is something else, or if snapshots with this
            ``filename`` could not be resumed: an absolute path, an empty one, or one
            that ends in ``.``, ``..``, ``.partial`` or ``.replaced``. The name that a
            function returns is checked when the first snapshot is saved.

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
        resumed_from: Snapshot that the run was resumed from, if any.
        saved_to: Snapshot that was taken last, unless it failed.
    """

    filename: str | Callable[[Any], str]
    pipeline: BetweenSteps | None
    n_retains: int
    resume: str | os.PathLike | None
    # chainer.training.Extension has a method called on_error.
    when_failed: str
    condition: Callable[[], bool] | None
    strict: bool
    background: bool
    resumed_from: Path | None = field(default=None, init=False)
    saved_to: Path | None = field(default=None, init=False)
    # The pipeline and the trainer that were saved, and the exception that was being
    # handled when the trainer started.
    _saved: BetweenSteps | None = field(default=None, init=False)
    _trainer: weakref.ref[Any] | None = field(default=None, init=False)
    _handled: BaseException | None = field(default=None, init=False)
    # The snapshot to resume from, once it was sought.
    _was_sought: bool = field(default=False, init=False)
    _sought: str | os.PathLike | None = field(default=None, init=False)

    #: Whether all ranks must call it at the same minibatch, whatever its trigger.
    is_collective = True
    trigger = 1, "epoch"
    # After all other extensions, whose state is part of the snapshot.
    priority = -100
    default_name = "snapshot"

    def initialize(self, trainer: Any) -> None:
        """Loads the snapshot to resume from.

        Raises:
            ValueError: If the schedule has two weight versions.
        """
        self._handled = sys.exc_info()[1]
        pipe = self._find_pipeline(trainer)
        refuse_late_gradients(pipe, "snapshot")
        path, self._was_sought = self.look(trainer), False
        if path is not None:
            found = load_snapshot(
                path,
                pipe,
                optimizers_of(trainer),
                state={"trainer": trainer},
                strict=self.strict,
            )
            self.resumed_from = Path(path)
            if pipe.is_chief:
                say(trainer, resumed(found, trainer, pipe, found.path))

    def look(self, trainer: Any) -> str | os.PathLike | None:
        """Returns the snapshot to resume from, if any; all ranks must call it."""
        if self._was_sought:
            return self._sought
        self._was_sought, self._sought = True, None
        if self.resume == "auto":
            among = self._among(trainer) or (trainer.out, "*")
            self._sought = latest_on_all_ranks(self._find_pipeline(trainer), *among)
        elif self.resume is not None:
            self._sought = self.resume
        return self._sought

    def give_way(self) -> None:
        """Loads no snapshot, because the run goes on from a newer state."""
        self._was_sought, self._sought = True, None

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
            optimizers_of(trainer),
            state={"trainer": trainer},
            n_retains=self.n_retains,
            background=self.background,
            report=self._report,
            among=self._among(trainer),
        )

    def _among(self, trainer: Any) -> tuple[str, str] | None:
        """Returns the folder of its snapshots and the pattern of their names, if known.

        They are not known for a function, which may return any name.
        """
        if callable(self.filename):
            return None
        return trainer.out, pattern_of(self.filename)

    def finalize(self) -> None:
        """Waits for files that are being written, if training has ended well."""
        # After an error, the other ranks are elsewhere, and cannot agree.
        if self._saved is None or sys.exc_info()[1] is not self._handled:
            return
        with calling_others(self, self._trainer()):
            settle(self._saved)

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

    def _find_pipeline(self, trainer: Any) -> BetweenSteps:
        return pipeline_of(trainer, self.pipeline, "snapshot")


def check_filename(filename: str | Callable[[Any], str]) -> None:
    """Refuses names under which a trainer could save, but not resume.

    Raises:
        TypeError: If it is neither a text nor a function.
        ValueError: If it is not a format string for one object, the trainer; or if it
            is an absolute path, or not a valid name.
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
    """Refuses a name that cannot be that of a snapshot in ``trainer.out``.

    Raises:
        ValueError: If it is an absolute path, or not a valid name.
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
        ValueError: If it is not a format string.

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
