"""A compression by trying: dense run, trials, rounds.

::

    run 1 of the script    trains the dense model, saves it; tries each layer,
                           method and degree without training
    run 2, 3, ...          a round: the weights of the last round that was kept, a plan
                           for fewer bytes, the script's own training with it
                               metric within the budget: kept, the next goes further
                               otherwise: not kept, the next goes half as far

Each part is on disk before the next begins. So a killed session continues with the part
that it was in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from chainer.training import Trainer
from chainer.training.triggers import IntervalTrigger

from divisible.communication.errors import DisagreementError
from model_compression.budgets import Budget
from model_compression.extension import Compress
from model_compression.rank_layers import RankLayers
from model_compression.rounds import next_way
from model_compression.selection import select
from model_compression.sensitivity_table import Sensitivity
from model_compression.trials import sensitivity
from pipeline.compressing.goals import CHANNEL, Goals, tried_granularity, without_rows
from pipeline.compressing.journal import Journal, Round
from pipeline.compressing.report import write_report
from pipeline.compressing.trained_model import TrainedModel
from pipeline.trainer_lines import say
from pipeline.training.signals import has_stopped

#: The part of a round at whose end the last step of pruning is taken, and after which
#: weights have few bits.
PRUNED_AT = 0.5


class Session:
    """Works with the trainers of a script's runs, one part of the session each.

    Args:
        journal (Journal): The state of the session, the same on all ranks.

    Attributes:
        is_over (bool): Whether no more runs of the script are needed.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self._settings = journal, journal.settings
        self._budget = Budget.parse(journal.settings.budget)
        self._is_stopped = self._is_compared = False

    @property
    def is_over(self) -> bool:
        """Whether no more runs of the script are needed."""
        return self._is_stopped or self._has_ended

    @property
    def _has_ended(self) -> bool:
        return self._journal.metric is not None and self._next_way() is None

    def report(self) -> str:
        """Writes the report of a session that has ended, and returns it.

        A session that was killed in its last moments has none yet.
        """
        return write_report(self._journal, self._budget)

    def take(self, trainer: Trainer, train: Callable[[], None]) -> None:
        """Does the next part with a trainer of the script; a call of all ranks.

        Args:
            trainer: The trainer, which has not run.
            train: Runs it.

        Raises:
            DisagreementError: If the ranks have different journals.
            ValueError: If the trainer, its model or the settings do not fit.
        """
        model = TrainedModel(trainer)
        self._compare(model)
        if model.is_chief:
            # The settings are on disk before the files that depend on them.
            self._journal.folder.mkdir(parents=True, exist_ok=True)
            self._journal.save()
        if self._journal.metric is None:
            self._try(trainer, model, train)
        else:
            self._go_on(trainer, model, train)
        if model.pipeline is not None:
            model.pipeline.close()

    def _compare(self, model: TrainedModel) -> None:
        """Refuses to continue from different journals."""
        if self._is_compared:
            return
        said = model.gather((self._journal.metric, len(self._journal.rounds)))
        for rank, theirs in enumerate(said):
            if theirs != said[0]:
                raise DisagreementError(
                    f"rank {rank} reads another {self._journal.folder} than rank 0:"
                    f" give --output a folder that all hosts share"
                )
        self._is_compared = True

    # -- the dense model --------------------------------------------------------------

    def _try(
        self, trainer: Trainer, model: TrainedModel, train: Callable[[], None]
    ) -> None:
        """Trains the dense model, and tries each layer, method and degree."""
        file = self._journal.dense_weights
        if model.gather(file.exists())[0]:
            model.load(file)
        else:
            train()
            if has_stopped():
                self._is_stopped = True
                return
            model.save(file)
        layers = RankLayers(model.links, model.gather)
        # The first evaluation may compile, and make buffers.
        name = self._budget.name_in(model.evaluate())
        settings, groups = self._settings, layers.groups()
        begun = time.perf_counter()
        layer_seconds = layers.seconds_of(model.evaluate)
        seconds = max(model.gather(time.perf_counter() - begun))
        self._say(model, trainer, f"trying {len(groups)} layers by their {name}")
        pipeline = model.pipeline
        table = sensitivity(
            model.links if pipeline is not None else model.links[0],
            lambda _: model.evaluate()[name],
            methods=settings.methods,
            degrees=settings.degrees,
            layers=_named(settings.layers, groups, layers),
            granularity=tried_granularity(settings.granularity),
            better=self._budget.better,
            path=self._journal.trials,
            pipeline=pipeline,
        )
        if not math.isfinite(table.base):
            raise ValueError(
                f"{name} of the dense model is {table.base}: its training diverged"
            )
        if settings.granularity == CHANNEL:
            table = without_rows(table, layers.shrinkable())
        journal = self._journal
        if model.is_chief:
            table.save(journal.table)
        journal.layer_seconds = {k: layer_seconds.get(k, 0.0) for k in table.sizes}
        # Refuses a goal that no choice reaches, before any round.
        Goals(settings, table, journal.layer_seconds, groups).plan(1.0, {})
        journal.metric, journal.base, journal.seconds = name, table.base, seconds
        self._end_part(model, trainer, str(table))

    # -- rounds -----------------------------------------------------------------------

    def _next_way(self) -> float | None:
        settings = self._settings
        return next_way(self._journal.tries, settings.rounds, settings.tries)

    def _go_on(
        self, trainer: Trainer, model: TrainedModel, train: Callable[[], None]
    ) -> None:
        """Does the next round."""
        journal, way = self._journal, self._next_way()
        number, best = len(journal.rounds) + 1, journal.best
        own = Sensitivity.load(journal.table) if model.is_chief else None
        table = model.gather(own)[0]
        model.load(
            journal.dense_weights if best is None else journal.weights(best),
            strict=best is None,
        )
        groups = RankLayers(model.links, model.gather).groups()
        goals = Goals(self._settings, table, journal.layer_seconds, groups)
        if self._settings.epochs is not None:
            trainer.stop_trigger = IntervalTrigger(self._settings.epochs, "epoch")
        plan = model.gather(goals.plan(way, _course(trainer)))[0]
        text = f"round {number}: {goals.words(way)}\n{plan}"
        self._say(model, trainer, text)
        trainer.out = str(journal.folder / f"round_{number}")
        compress = Compress(plan, model.optimizers, pipeline=model.pipeline)
        trainer.extend(compress)
        train()
        if has_stopped():
            self._is_stopped = True
            return
        self._judge(trainer, model, list(table.sizes), compress, way, goals)

    def _judge(
        self,
        trainer: Trainer,
        model: TrainedModel,
        layers: list[str],
        compress: Compress,
        way: float,
        goals: Goals,
    ) -> None:
        """Keeps what a round made, or not."""
        journal, plan = self._journal, compress.plan
        values, seconds = _timed(model)
        metric = values[journal.metric]
        is_kept = self._budget.keeps(journal.base, metric)
        if is_kept:
            model.save(journal.weights(len(journal.rounds) + 1))
        if self._settings.granularity == CHANNEL:
            # Sizes and seconds are those of the model that apply() makes.
            compress.shrink()
            model.evaluate()
            _, seconds = _timed(model)
        found = RankLayers(model.links, model.gather).bytes_under(plan)
        n_bytes, part = goals.at(way)
        journal.rounds.append(
            Round(
                way,
                n_bytes if math.isfinite(n_bytes) else None,
                part,
                plan.settings(),
                metric if math.isfinite(metric) else None,
                {layer: found[layer] for layer in layers},
                seconds / journal.seconds,
                is_kept,
            )
        )
        word = "kept" if is_kept else "not kept"
        text = (
            f"round {len(journal.rounds)}: {journal.metric} {metric:.4g} after"
            f" {journal.base:.4g}, {word}"
        )
        self._end_part(model, trainer, text)

    def _end_part(self, model: TrainedModel, trainer: Trainer, text: str) -> None:
        """Writes the journal, and at the end the report."""
        if not model.is_chief:
            return
        self._journal.save()
        say(trainer, text)
        if self._has_ended:
            say(trainer, write_report(self._journal, self._budget))

    @staticmethod
    def _say(model: TrainedModel, trainer: Trainer, text: str) -> None:
        if model.is_chief:
            say(trainer, text)


def _timed(model: TrainedModel) -> tuple[dict[str, float], float]:
    """Returns what the evaluators report, and the seconds of the slowest rank."""
    begun = time.perf_counter()
    values = model.evaluate()
    return values, max(model.gather(time.perf_counter() - begun))


def _named(
    entries: list[str], groups: Mapping[str, list[str]], layers: RankLayers
) -> list[str]:
    """Returns the layers that entries name, of those with the same weights the first.

    Raises:
        ValueError: If an entry names no layer.
    """
    named = {*select(entries, layers.known, "--layers")}
    return [first for first, members in groups.items() if named & {*members}]


def _course(trainer: Trainer) -> dict[str, Any]:
    """Returns the course of the rules of a round, by the length of the training.

    Raises:
        ValueError: If the length is not known.
    """
    length = getattr(trainer.stop_trigger, "get_training_length", None)
    if length is None:
        raise ValueError(
            f"the stop trigger {type(trainer.stop_trigger).__name__} has no length in"
            f" epochs or iterations: give --epochs, the length of a round"
        )
    period, unit = length()
    return {"begin": (0, unit), "end": (period * PRUNED_AT, unit)}
