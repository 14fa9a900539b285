"""Makes the trainers of all ranks one trainer."""

from __future__ import annotations

import functools
import os
from typing import Any

from chainer.training import Extension, Trainer, extensions, triggers
from chainer.training.extensions._snapshot import _Snapshot

from divisible.communication.errors import in_words
from divisible.user_warnings import warn_user
from pipeline.trainer_lines import say
from pipeline.training.lasting_reports import let_last


class OneTrainer(Extension):
    """Lets the ranks' trainers stop together, and only rank 0 print and write.

    ``PipelineUpdater`` adds it to its trainer. It does its work before the first
    minibatch, when the other extensions are known.

    Raises:
        ValueError: When the trainer starts, on all ranks, if an extension would write
            files that are of no use.
    """

    name = "one_trainer"
    # Before all that a script adds.
    priority = 1_000_000

    def trigger(self, trainer: Trainer) -> bool:
        """Returns ``False``: there is nothing to do after a minibatch."""
        return False

    def initialize(self, trainer: Trainer) -> None:
        """Is called by the trainer when it starts."""
        ranks = trainer.updater.pipeline.ranks
        _refuse_evaluators_of_stages(trainer)
        if ranks.world.size > 1:
            _refuse_snapshots_of_one_rank(trainer)
            _refuse_files_of_several_ranks(trainer)
        trainer.updater.synchronize()
        if not isinstance(trainer.stop_trigger, StopTogether):
            trainer.stop_trigger = StopTogether(trainer.stop_trigger)
        is_silent = not ranks.is_chief
        for name, entry in trainer._extensions.items():
            let_last(entry.extension)
            is_collective = getattr(entry.extension, "is_collective", False)
            if is_collective and not isinstance(entry.trigger, _ALIKE):
                entry.trigger = TriggerOfRankZero(entry.trigger)
            if isinstance(entry.extension, extensions.DumpGraph):
                # As if it had been called; it does that once.
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


def _refuse_files_of_several_ranks(trainer: Trainer) -> None:
    """Refuses snapshot_object() into one file of several ranks; a call of all ranks."""
    mine = {
        os.path.abspath(os.path.join(trainer.out, extension.filename))
        for entry in trainer._extensions.values()
        if isinstance(extension := entry.extension, _Snapshot)
        and isinstance(extension.filename, str)
    }
    writers: dict[str, list[int]] = {}
    for rank, theirs in enumerate(trainer.updater.pipeline.gather(mine, "agree")):
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
    """Refuses Chainer's evaluator of a pipeline, or of what is no whole model."""
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
            found = [target] if pipe.ranks.size == 1 else target.links()
            if extension.eval_func is None and any(
                id(link) in stages for link in found
            ):
                raise ValueError(
                    f"the extension {name!r} is Chainer's Evaluator of a stage, which"
                    f" has outputs and no loss: use PipelineEvaluator(iterator, pipe)"
                )


class TriggerAround:
    """A trigger that looks at more than the one within it.

    Args:
        trigger: The one within.
    """

    def __init__(self, trigger: Any) -> None:
        self._trigger = trigger

    def __getattr__(self, name: str) -> Any:
        # Such as the length of the training, which progress bars ask for, and the
        # state, which is there only with some triggers.
        return getattr(self._trigger, name)


class TriggerOfRankZero(TriggerAround):
    """A trigger that fires on all ranks when it does on rank 0.

    For extensions that the ranks must call together. Triggers that look at a clock do
    not fire alike.
    """

    def __call__(self, trainer: Trainer) -> bool:
        """Returns whether that of rank 0 fires."""
        # The others' have a state too.
        fires = bool(self._trigger(trainer))
        ranks = trainer.updater.pipeline.ranks
        return bool(ranks.agree(fires and ranks.is_chief))


#: Triggers that look at epochs, and at values that are equal on all ranks.
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

    Before the first minibatch it says so: a run that was complete has been resumed.
    """

    def __init__(self, trigger: Any) -> None:
        super().__init__(trigger)
        self._has_begun = False

    def __call__(self, trainer: Trainer) -> bool:
        """Returns whether some rank wants to stop, or was requested to."""
        updater = trainer.updater
        # Triggers and extensions look at the epoch; it may have been loaded.
        updater.synchronize()
        fires = bool(self._trigger(trainer)) or updater.stop_code > 0
        ranks = updater.pipeline.ranks
        stops = bool(ranks.agree(fires))
        if stops and not self._has_begun and ranks.is_chief:
            say(
                trainer,
                f"nothing is left to do: the training is complete at iteration"
                f" {updater.iteration}, epoch {updater.epoch}; a later stop_trigger of"
                f" the trainer goes on",
            )
        self._has_begun = True
        return stops


# What writes a file of a fixed name, all ranks the same one.
_PLOTS = (extensions.PlotReport, extensions.VariableStatisticsPlot)


def _silence(entry: Any) -> None:
    """Stops an extension from printing, and from writing what rank 0 writes.

    None of Chainer's has a public setting for it. Chainer 7.8.1 is the last one.
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
