"""One trainer, made of the trainers of all ranks."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence, Set
from typing import Any

from chainer.training import Extension, Trainer, extensions, triggers
from chainer.training.extensions._snapshot import _Snapshot

from divisible.communication.errors import in_words
from divisible.user_warnings import warn_user
from pipeline.trainer_lines import say
from pipeline.training.lasting_reports import let_last
from pipeline.training.late_reports import let_wait
from pipeline.training.trigger_texts import text_of


class OneTrainer(Extension):
    """Makes the ranks' trainers stop together, and only rank 0 print and write.

    ``PipelineUpdater`` adds this extension to its trainer. It works once, before the
    first minibatch, when all other extensions are known.

    Raises:
        ValueError: When the trainer starts, on all ranks, if an extension would write
            files without use.
    """

    name = "one_trainer"
    # Before all extensions that a script adds.
    priority = 1_000_000

    def trigger(self, trainer: Trainer) -> bool:
        """Returns ``False``, as there is nothing to do after a minibatch."""
        return False

    def initialize(self, trainer: Trainer) -> None:
        """Changes extensions and stop trigger; called when the trainer starts."""
        ranks = trainer.updater.pipeline.internals.ranks
        overlap = not trainer.updater.pipeline.internals.step.overlap.feature
        _refuse_evaluators_of_stages(trainer)
        if not isinstance(trainer.stop_trigger, StopTogether):
            trainer.stop_trigger = StopTogether(trainer.stop_trigger)
        if ranks.world.size > 1:
            _refuse_snapshots_of_one_rank(trainer)
            mine = _files_of_rank(trainer), trainer.stop_trigger.text
            said = trainer.updater.pipeline.internals.gather(mine, "agree")
            files, stops = zip(*said)
            _refuse_files_of_several_ranks(files)
            is_alike = None not in stops and len({*stops}) == 1
            trainer.stop_trigger.is_alike = overlap and is_alike
        trainer.updater.synchronize()
        is_silent = not ranks.is_chief
        for name, entry in trainer._extensions.items():
            if overlap:
                let_wait(entry.extension)
            let_last(entry.extension)
            is_collective = getattr(entry.extension, "is_collective", False)
            if is_collective and not isinstance(entry.trigger, _ALIKE):
                entry.trigger = TriggerOfRankZero(entry.trigger)
            if isinstance(entry.extension, extensions.DumpGraph):
                # The extension then behaves as if it had been called, which it is only
                # once.
                entry.extension._flag_called = True
                if not is_silent:
                    warn_user(
                        f"the extension {name!r} is left out: no rank has the graph of"
                        f" the undivided model",
                    )
            if is_silent:
                _silence(entry)


def _refuse_snapshots_of_one_rank(trainer: Trainer) -> None:
    for name, entry in trainer._extensions.items():
        extension = entry.extension
        if isinstance(extension, _Snapshot) and extension._target is None:
            raise ValueError(
                f"the extension {name!r} is Chainer's snapshot(): all ranks would write"
                f" the same file, each with its own stage. Use pipeline.snapshot(), or"
                f" snapshot_object(trainer, filename) with a name for each rank"
            )


def _files_of_rank(trainer: Trainer) -> set[str]:
    """Returns the paths that snapshot_object() writes on this rank."""
    return {
        os.path.abspath(os.path.join(trainer.out, extension.filename))
        for entry in trainer._extensions.values()
        if isinstance(extension := entry.extension, _Snapshot)
        and isinstance(extension.filename, str)
    }


def _refuse_files_of_several_ranks(files: Sequence[Set[str]]) -> None:
    """Refuses one file of several snapshot_object(), given the files of each rank."""
    writers: dict[str, list[int]] = {}
    for rank, theirs in enumerate(files):
        for path in theirs:
            writers.setdefault(path, []).append(rank)
    for path, ranks in writers.items():
        if len(ranks) > 1:
            raise ValueError(
                f"{in_words(ranks)} would write one file, {os.path.basename(path)},"
                f" each with its own stage, by Chainer's snapshot_object(): use"
                f" pipeline.snapshot() and export_npz, or give each rank's file a name"
                f" with its rank"
            )


def _refuse_evaluators_of_stages(trainer: Trainer) -> None:
    """Refuses Chainer's evaluator of a pipeline, or of a part of a model."""
    pipe = trainer.updater.pipeline
    stages = set(map(id, pipe.stages.values()))
    for name, entry in trainer._extensions.items():
        extension = entry.extension
        if not isinstance(extension, extensions.Evaluator) or hasattr(
            extension, "pipeline"
        ):
            continue
        if extension._targets is pipe:
            raise ValueError(
                f"the extension {name!r} is Chainer's Evaluator of a pipeline, which is"
                f" no link: use PipelineEvaluator(iterator, pipe)"
            )
        for target in extension.get_all_targets().values():
            # In one process a classifier around the model has a loss.
            found = [target] if pipe.internals.ranks.size == 1 else target.links()
            if extension.eval_func is None and any(
                id(link) in stages for link in found
            ):
                raise ValueError(
                    f"the extension {name!r} is Chainer's Evaluator of a stage, which"
                    f" has outputs and no loss: use PipelineEvaluator(iterator, pipe)"
                )


class TriggerAround:
    """A trigger around another one, whose attributes it has.

    Args:
        trigger: The inner trigger.
    """

    def __init__(self, trigger: Any) -> None:
        self._trigger = trigger

    def __getattr__(self, name: str) -> Any:
        # Progress bars read the length of the training. Only some triggers have a
        # state, so this class defines none.
        return getattr(self._trigger, name)


class TriggerOfRankZero(TriggerAround):
    """A trigger that fires on all ranks when it fires on rank 0.

    Extensions that all ranks must call together need it, because a trigger that reads
    a clock need not fire on all ranks alike.
    """

    def __call__(self, trainer: Trainer) -> bool:
        """Returns whether the trigger of rank 0 fires."""
        # The other ranks call theirs too, because it may have a state.
        fires = bool(self._trigger(trainer))
        ranks = trainer.updater.pipeline.internals.ranks
        return bool(ranks.agree(fires and ranks.is_chief))


#: Triggers that depend only on epochs, and on values that are equal on all ranks.
_ALIKE = (
    TriggerOfRankZero,
    triggers.BestValueTrigger,
    triggers.EarlyStoppingTrigger,
    triggers.IntervalTrigger,
    triggers.ManualScheduleTrigger,
    triggers.OnceTrigger,
)


class StopTogether(TriggerAround):
    """A stop trigger that fires on all ranks if it does on one.

    The ranks agree after each minibatch, and so wait for each other, unless the
    triggers of all ranks are known to fire alike.

    If it fires before the first minibatch, rank 0 prints that the resumed run was
    complete.

    Attributes:
        is_alike (bool): Whether the triggers of all ranks fire alike.
    """

    def __init__(self, trigger: Any) -> None:
        super().__init__(trigger)
        self._has_begun = self.is_alike = False

    @property
    def text(self) -> str | None:
        """A text about the trigger of this rank; see :func:`.text_of`."""
        return text_of(self._trigger)

    def __call__(self, trainer: Trainer) -> bool:
        """Returns whether a rank wants to stop, or has been asked to."""
        updater = trainer.updater
        # The epoch may have been loaded, and triggers and extensions read it.
        updater.synchronize()
        fires = bool(self._trigger(trainer)) or updater.stop_code > 0
        ranks = updater.pipeline.internals.ranks
        stops = fires if self.is_alike else bool(ranks.agree(fires))
        if stops and not self._has_begun and ranks.is_chief:
            say(trainer, _why_not_begun(updater))
        self._has_begun = True
        return stops


def _why_not_begun(updater: Any) -> str:
    """Returns the reason why a trainer stops before its first minibatch."""
    if updater.stop_code > 0:
        return (
            f"nothing is trained: request_stop({updater.stop_code}) of this updater has"
            f" ended an earlier training; a new updater goes on"
        )
    return (
        f"nothing is left to do: the training is complete at iteration"
        f" {updater.iteration}, epoch {updater.epoch}; a later stop_trigger of the"
        f" trainer goes on"
    )


# Extensions that write a file with a fixed name, the same on all ranks.
_PLOTS = (extensions.PlotReport, extensions.VariableStatisticsPlot)


def _silence(entry: Any) -> None:
    """Stops an extension from printing, and from writing what rank 0 writes.

    Chainer's extensions have no public setting for it. Chainer 7.8.1 is the last
    version, so these private attributes stay.
    """
    extension = entry.extension
    if isinstance(extension, extensions.PrintReport):
        extension._out = _nowhere()
        extension = extension._log_report
    if isinstance(extension, extensions.ProgressBar):
        extension._pbar._out = _nowhere()
    if isinstance(extension, extensions.LogReport):
        extension._log_name = None
    if isinstance(extension, _PLOTS):
        entry.call_before_training = False
        entry.trigger = _never


def _never(trainer: Trainer) -> bool:
    return False


@functools.cache
def _nowhere() -> Any:
    return open(os.devnull, "w", encoding="utf-8")
