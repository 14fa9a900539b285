"""Reports of extensions on some rank, in the observations of all.

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
from pipeline.training.sharing_place import Entry, Place, find_place


class SharedReports(Extension):
    """Lets the observations of all ranks have what extensions report on any of them.

    ``PipelineUpdater`` adds it to its trainer. It costs a small message in iterations
    in which an extension may have reported something (in all, if that cannot be known
    alike on all ranks), and a larger one if they have not reported the same.

    Values that differ under one name are warned of, once for each name; all ranks go on
    with that of the first rank which has one.
    """

    name = "shared_reports"
    # After all that a script adds: where to share if nothing else is behind.
    priority = -1_000_000

    def __init__(self) -> None:
        self._place = Place([], False, False)
        self._have_fired = False
        self._told: set[str] = set()

    def trigger(self, trainer: Trainer) -> bool:
        """Returns ``False``: what is to be done is done at its place."""
        return False

    def initialize(self, trainer: Trainer) -> None:
        """Agrees on the place; called by the trainer when it starts."""
        ranks = trainer.updater.pipeline.ranks
        if ranks.world.size == 1:
            return
        # In the order in which the trainer calls them.
        called = sorted(trainer._extensions.items(), key=lambda item: -item[1].priority)
        mine = [Entry.of(name, entry) for name, entry in called]
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
        """Notes that an extension is called that may report something."""
        self._have_fired = True

    def share(self, trainer: Trainer) -> None:
        """Adds to the trainer's observation what other ranks reported."""
        updater, place = trainer.updater, self._place
        is_due = place.are_any and (self._have_fired or not place.are_alike)
        self._have_fired = False
        if not (is_due or updater.somebody_reports_more):
            return
        ranks = updater.pipeline.ranks
        mine = numbers(trainer.observation, updater.reported_alike)
        digest = hashlib.blake2b(repr(sorted(mine.items())).encode(), digest_size=8)
        digests = ranks.gather(np.frombuffer(digest.digest(), np.int64))
        if len(np.unique(ranks.finish(digests))) == 1:
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
    """Returns what was reported on any rank, and where ranks differ.

    Args:
        said: By all ranks, values by name.

    Returns:
        The values by name, those of the first rank that has one; and for names under
        which they differ, which rank says what.

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
    """Returns the numbers in an observation, as ``DictSummary`` takes them.

    Args:
        observation: Of the trainer.
        alike: Names whose values are equal on all ranks.
    """
    numbers: dict[str, Any] = {}
    for name, value in observation.items():
        if name in alike:
            continue
        value, *weight = value if isinstance(value, tuple) else (value,)
        plain = [_plain(each) for each in (value, *weight)]
        if None not in plain:
            numbers[name] = tuple(plain) if weight else plain[0]
    return numbers


def _plain(value: Any) -> float | int | bool | None:
    """Returns a number of any kind as one of Python's; ``None`` for what is none."""
    array = chainer.as_array(value)
    if isinstance(array, chainer.get_array_types()) and array.ndim == 0:
        array = chainer.get_device("@numpy").send(array)[()]
    value = array.item() if isinstance(array, np.generic) else array
    return value if isinstance(value, (float, int)) else None


class _Noted(TriggerAround):
    """A trigger of an extension that may report something."""

    def __init__(self, trigger: Any, reports: SharedReports) -> None:
        super().__init__(trigger)
        self._reports = reports

    def __call__(self, trainer: Trainer) -> bool:
        fires = bool(self._trigger(trainer))
        if fires:
            self._reports.note()
        return fires


class _Preceded(_Noted):
    """The trigger of the first extension that comes after sharing."""

    def __call__(self, trainer: Trainer) -> bool:
        self._reports.share(trainer)
        return bool(self._trigger(trainer))
