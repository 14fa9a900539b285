"""The place among a trainer's extensions where ranks share reported values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chainer.training import extensions
from chainer.training.extension import PRIORITY_READER
from chainer.training.extensions._snapshot import _Snapshot

from pipeline.training.evaluator import PipelineEvaluator
from pipeline.training.one_trainer import TriggerOfRankZero
from pipeline.training.trigger_texts import is_by_time, text_of

#: Extensions that read reported values.
_CONSUMERS = (extensions.LogReport, extensions.PlotReport, extensions.MicroAverage)
# Extensions that report nothing, or the same values on every rank.
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


class SharedEntry(NamedTuple):
    """An extension of a trainer, described for the other ranks.

    Attributes:
        name: Name of the extension in the trainer.
        priority: Priority; extensions with higher ones are called first.
        role: ``'consumer'``, ``'reporter'``, or ``''`` for neither.
        is_collective: Whether all ranks must call it together.
        when: Text about its trigger, if triggers with equal texts fire alike; else
            ``None``.
    """

    name: str
    priority: float
    role: str
    is_collective: bool
    when: str | None

    @classmethod
    def of(cls, name: str, entry: Any) -> SharedEntry:
        """Returns the description of an extension."""
        extension, trigger, role = entry.extension, entry.trigger, "reporter"
        if isinstance(extension, _CONSUMERS):
            role = "consumer"
        # This package's own extensions share their values themselves.
        elif isinstance(extension, _SILENT) or _is_ours(extension):
            role = ""
        when = "when rank 0 calls it"
        if not isinstance(trigger, TriggerOfRankZero):
            when = text_of(trigger) if is_by_time(trigger) else None
        is_collective = bool(getattr(extension, "is_collective", False))
        return cls(name, float(entry.priority), role, is_collective, when)


def _is_ours(extension: Any) -> bool:
    return type(extension).__module__.partition(".")[0] == "pipeline"


class SharingPlace(NamedTuple):
    """The place where the ranks share reported values.

    Attributes:
        positions: Position in each rank's extensions before which it shares.
        are_any: Whether a rank has extensions before the place that may report.
        are_alike: Whether all ranks have the same such extensions, and call them alike.
    """

    positions: list[int]
    are_any: bool
    are_alike: bool


def find_place(said: Sequence[Sequence[SharedEntry]]) -> SharingPlace:
    """Finds the place to share, between the same collective extensions on every rank.

    The place is before the first extension that reads reported values. If no such
    extension is known, it is before the first one with a reader's priority.

    Args:
        said: Extensions of each rank, in the order of their calls. All ranks have the
            last extension, which comes after the place.

    Example:
        >>> stats = SharedEntry("stats", 300, "reporter", False, "every epoch")
        >>> log = SharedEntry("log", 100, "consumer", False, None)
        >>> last = SharedEntry("last", -1, "", False, None)
        >>> find_place([[stats, log, last], [stats, last]])
        SharingPlace(positions=[1, 1], are_any=True, are_alike=True)
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
    return SharingPlace(positions, any(reporters), are_alike)


def _first_consumer(entries: Sequence[SharedEntry]) -> int | None:
    roles = [entry.role for entry in entries]
    return roles.index("consumer") if "consumer" in roles else None


def _first_reader(entries: Sequence[SharedEntry]) -> int:
    return next(
        i for i, entry in enumerate(entries) if entry.priority <= PRIORITY_READER
    )
