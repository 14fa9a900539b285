"""Values that extensions report on some rank, in the observations of all ranks.

::

    rank 0     update  [ParameterStatistics]         share  [LogReport] [PrintReport]
    rank 1     update  [ParameterStatistics] [mine]  share  [LogReport] [PrintReport]
                        reports /0/W/...      /2/W/...  |    both, and what mine reports
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import chainer
import numpy as np
from chainer.training import Extension, Trainer

from divisible.user_warnings import warn_user
from pipeline.training.one_trainer import TriggerAround
from pipeline.training.sharing_place import SharedEntry, SharingPlace, find_place


class SharedReports(Extension):
    """Adds the values that extensions report on any rank to all ranks' observations.

    ``PipelineUpdater`` adds this extension to its trainer. It costs a small message in
    iterations in which an extension may have reported a value. Where ranks cannot know
    this alike, every iteration has the message. If the ranks did not report the same
    values, a larger message follows.

    If ranks report different values under one name, rank 0 warns once, and all ranks
    use the value of the first rank that has one.
    """

    name = "shared_reports"
    # After all extensions that a script adds: the last possible place to share.
    priority = -1_000_000

    def __init__(self) -> None:
        self._place = SharingPlace([], False, False)
        self._have_fired = False
        self._told: set[str] = set()

    def trigger(self, trainer: Trainer) -> bool:
        """Returns ``False``, as another extension's trigger calls :meth:`share`."""
        return False

    def initialize(self, trainer: Trainer) -> None:
        """Finds the place to share, with all ranks; called when the trainer starts."""
        ranks = trainer.updater.pipeline.internals.ranks
        if ranks.world.size == 1:
            return
        # The trainer calls extensions in this order.
        called = sorted(trainer._extensions.items(), key=lambda item: -item[1].priority)
        mine = [SharedEntry.of(name, entry) for name, entry in called]
        with ranks.calls.made("tell which extensions there are"):
            said = ranks.all_gather(mine, "to tell which extensions they have")
        self._place = find_place(said)
        position = self._place.positions[ranks.world.rank]
        for entry, (_, of_trainer) in zip(mine[:position], called):
            if entry.role == "reporter":
                of_trainer.trigger = _Noted(of_trainer.trigger, self)
        _, behind = called[position]
        behind.trigger = _Preceded(behind.trigger, self)

    def note(self) -> None:
        """Records a call of an extension that may report a value."""
        self._have_fired = True

    def share(self, trainer: Trainer) -> None:
        """Adds the values that other ranks reported to the trainer's observation."""
        updater, place = trainer.updater, self._place
        is_due = place.are_any and (self._have_fired or not place.are_alike)
        self._have_fired = False
        if not (is_due or updater.somebody_reports_more):
            return
        ranks = updater.pipeline.internals.ranks
        mine = numbers(trainer.observation, updater.reported_alike)
        digest = hashlib.blake2b(repr(sorted(mine.items())).encode(), digest_size=8)
        digests = ranks.gather(np.frombuffer(digest.digest(), np.int64))
        if len(np.unique(digests.read())) == 1:
            return
        with ranks.calls.made("share what extensions report"):
            said = ranks.all_gather(mine, "to tell what extensions reported")
        merged, differing = merge(said)
        for name, value in merged.items():
            if mine.get(name) != value:
                trainer.observation[name] = value
        if ranks.is_chief:
            self._warn(differing)

    def _warn(self, differing: Mapping[str, str]) -> None:
        for name in differing.keys() - self._told:
            self._told.add(name)
            warn_user(
                f"the ranks report different values as {name!r}: {differing[name]}. The"
                f" log has the first of them; report it on one rank only, or under a"
                f" name of its own on each",
            )


def merge(said: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the values that any rank reported, and where ranks differ.

    Args:
        said: Values by name, reported by each rank.

    Returns:
        The values by name, each of the first rank that has one; and the names with
        different values, with a text of each rank's value.

    Example:
        >>> merge([{"x": 1.0}, {"x": 2.0, "y": 3.0}])
        ({'x': 1.0, 'y': 3.0}, {'x': '1.0 on rank 0, 2.0 on rank 1'})
    """
    merged: dict[str, Any] = {}
    differing: dict[str, str] = {}
    for mine in said:
        for name, value in mine.items():
            # NaN is not equal to itself.
            if repr(merged.setdefault(name, value)) != repr(value):
                differing[name] = ", ".join(
                    f"{theirs[name]} on rank {rank}"
                    for rank, theirs in enumerate(said)
                    if name in theirs
                )
    return merged, differing


def numbers(observation: Mapping[str, Any], alike: Set[str]) -> dict[str, Any]:
    """Returns the numbers in an observation, in the form that ``DictSummary`` takes.

    Args:
        observation: Observation of the trainer.
        alike: Names whose values are equal on all ranks.
    """
    numbers: dict[str, Any] = {}
    for name in observation:
        if name in alike:
            # Values that are late are alike, too. They need not be read here.
            continue
        value = observation[name]
        value, *weight = value if isinstance(value, tuple) else (value,)
        plain = [_plain(each) for each in (value, *weight)]
        if None not in plain:
            numbers[name] = tuple(plain) if weight else plain[0]
    return numbers


def _plain(value: Any) -> float | int | bool | None:
    """Returns a number of any type as one of Python's; ``None`` for other values."""
    array = chainer.as_array(value)
    if isinstance(array, chainer.get_array_types()) and array.ndim == 0:
        array = chainer.get_device("@numpy").send(array)[()]
    value = array.item() if isinstance(array, np.generic) else array
    return value if isinstance(value, (float, int)) else None


class _Noted(TriggerAround):
    """A trigger of an extension that may report a value; it records its calls."""

    def __init__(self, trigger: Any, reports: SharedReports) -> None:
        super().__init__(trigger)
        self._reports = reports

    def __call__(self, trainer: Trainer) -> bool:
        fires = bool(self._trigger(trainer))
        if fires:
            self._reports.note()
        return fires


class _Preceded(_Noted):
    """A trigger that shares values first, of the first extension after the place."""

    def __call__(self, trainer: Trainer) -> bool:
        self._reports.share(trainer)
        return bool(self._trigger(trainer))
