"""The place among a trainer's extensions where ranks share what was reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chainer.training import extensions, triggers
from chainer.training.extension import PRIORITY_READER
from chainer.training.extensions._snapshot import _Snapshot

from pipeline.training.evaluator import PipelineEvaluator
from pipeline.training.one_trainer import TriggerOfRankZero

#: Those that read what was reported.
_CONSUMERS = (extensions.LogReport, extensions.PlotReport, extensions.MicroAverage)
# Those that report nothing, or the same on every rank.
_SILENT = (
    *_CONSUMERS,
    PipelineEvaluator,
    _Snapshot,
    extensions.DumpGraph,
    extensions.ExponentialShift,
    extensions.FailOnNonNumber,
    extensions.InverseShift,
    extensions.LinearShift,
    extensions.MultistepShift,
    extensions.PolynomialShift,
    extensions.PrintReport,
    extensions.ProgressBar,
    extensions.StepShift,
    extensions.VariableStatisticsPlot,
    extensions.WarmupShift,
)
# Triggers that fire alike where they have the same settings.
_BY_TIME = (
    triggers.IntervalTrigger,
    triggers.ManualScheduleTrigger,
    triggers.OnceTrigger,
)


class Entry(NamedTuple):
    """An extension of a trainer, as its rank tells the others of it.

    Attributes:
        name: Its name in the trainer.
        priority: Those of higher ones are called first.
        role: ``'consumer'``, ``'reporter'``, or ``''`` for neither.
        is_collective: Whether all ranks take part in it.
        when: When it is called, in words, if that is alike for equal words.
    """

    name: str
    priority: float
    role: str
    is_collective: bool
    when: str | None

    @classmethod
    def of(cls, name: str, entry: Any) -> Entry:
        """Returns what is to be said of one."""
        extension, trigger, role = entry.extension, entry.trigger, "reporter"
        if isinstance(extension, _CONSUMERS):
            role = "consumer"
        # What the project's own do is up to this package.
        elif isinstance(extension, _SILENT) or _is_ours(extension):
            role = ""
        when = None
        if isinstance(trigger, TriggerOfRankZero):
            when = "when rank 0 calls it"
        elif type(trigger) in _BY_TIME:
            settings = {k: v for k, v in vars(trigger).items() if k[0] != "_"}
            when = f"{type(trigger).__name__}: {sorted(settings.items())}"
        is_collective = bool(getattr(extension, "is_collective", False))
        return cls(name, float(entry.priority), role, is_collective, when)


def _is_ours(extension: Any) -> bool:
    return type(extension).__module__.partition(".")[0] == "pipeline"


class Place(NamedTuple):
    """The place where the ranks share what was reported.

    Attributes:
        positions: For each rank, before which of its extensions.
        are_any: Whether some rank has extensions before it that may report.
        are_alike: Whether all ranks have the same ones, and call them together.
    """

    positions: list[int]
    are_any: bool
    are_alike: bool


def find_place(said: Sequence[Sequence[Entry]]) -> Place:
    """Finds where to share, between the same collective extensions on every rank.

    That is before the first extension that reads what was reported. If there is none
    that is known, it is before the first one of a reader's priority.

    Args:
        said: For each rank its extensions in the order of their calls. The last one of
            all, which all ranks have, is behind what is shared.

    Example:
        >>> stats = Entry("stats", 300, "reporter", False, "every epoch")
        >>> log = Entry("log", 100, "consumer", False, None)
        >>> last = Entry("last", -1, "", False, None)
        >>> find_place([[stats, log, last], [stats, last]])
        Place(positions=[1, 1], are_any=True, are_alike=True)
    """
    firsts = [_first_consumer(entries) for entries in said]
    leader = next((i for i, first in enumerate(firsts) if first is not None), 0)
    split = firsts[leader]
    if split is None:
        split = _first_reader(said[leader])
    before = {entry.name for entry in said[leader][:split]}
    after = {entry.name for entry in said[leader][split:]}
    positions, reporters = [], []
    for entries in said:
        names = [entry.name for entry in entries]
        position = next(i for i, name in enumerate(names) if name in after)
        for i, entry in enumerate(entries):
            if entry.is_collective and entry.name in before:
                position = max(position, i + 1)
        positions.append(position)
        found = {e.name: e.when for e in entries[:position] if e.role == "reporter"}
        reporters.append(found)
    first, *others = reporters
    are_alike = None not in first.values() and all(each == first for each in others)
    return Place(positions, any(reporters), are_alike)


def _first_consumer(entries: Sequence[Entry]) -> int | None:
    roles = [entry.role for entry in entries]
    return roles.index("consumer") if "consumer" in roles else None


def _first_reader(entries: Sequence[Entry]) -> int:
    return next(
        i for i, entry in enumerate(entries) if entry.priority <= PRIORITY_READER
    )
