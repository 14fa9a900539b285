"""The question of the page: a schedule, its size, and what its stages cost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Union

from divisible.planning.units import parse_bytes
from divisible.records import (
    from_fields,
    listed,
    plain_integer,
    plain_number,
    plain_text,
    shown,
)
from divisible.schedules.actions import ScheduleError
from divisible.schedules.catalogue import CATALOGUE, Placement, create
from divisible.schedules.costs import Costs, equal_layers
from divisible.schedules.groups import group_weights
from divisible.schedules.schedule import Schedule

#: Seconds of all layers of a rank, or a tuple with the seconds of each stage.
Times = Union[float, tuple]
#: Largest number of actions that the page draws.
MOST_ACTIONS = 40_000
_COUNTS = ("ranks", "chunks", "microbatches", "minibatches", "groups")
_TIMES = ("forward", "backward_input", "backward_weight")
# Each microbatch of a stage has F, I and W.
_KINDS = 3


@dataclass(frozen=True)
class Question:
    """The contents of the controls of the page. Questions are values, and compare.

    Attributes:
        schedule: Name in the catalogue, unless there is a ``text``.
        text: The text of a schedule, as `Schedule.parse` reads it; it has ranks,
            stages and microbatches of its own.
        ranks: Number of ranks.
        chunks: Number of stages on a rank, for schedules that take any.
        microbatches: Number of microbatches in a minibatch.
        minibatches: Number of minibatches, which follow each other.
        groups: Number of microbatches whose weight gradients are one product.
        forward: Seconds of F: one number for all layers of a rank, or one for each
            stage.
        backward_input: Seconds of I, in the same way.
        backward_weight: Seconds of W, in the same way.
        message: Seconds of a message in proportion to its size; ``None`` for those of
            the plan's machine, or for 0.
        latency: Seconds of a message besides, in the same way.
        memory: Limit of what a rank holds, as text: microbatches in all layers of a
            rank; or, with ``layers``, a size such as ``'8GiB'``.
        layers: Whether times come from the layers of a profile.
        cuts: Positions of the cuts in these layers; ``None`` for even stages.

    Raises:
        TypeError: If a value is of another type.
        ValueError: If a value is out of range.

    Example:
        >>> question = Question("zb_v", ranks=2, microbatches=4)
        >>> question.made().stage_ranks
        (0, 1, 1, 0)
        >>> Question.from_json({"schedule": "gpipe"}).ranks
        4
    """

    schedule: str = "1f1b"
    text: str | None = None
    ranks: int = 4
    chunks: int = 2
    microbatches: int = 8
    minibatches: int = 1
    groups: int = 1
    forward: Times = 1.0
    backward_input: Times = 1.0
    backward_weight: Times = 1.0
    message: float | None = None
    latency: float | None = None
    memory: str | None = None
    layers: bool = False
    cuts: tuple | None = None

    def __post_init__(self) -> None:
        plain_text("schedule", self.schedule)
        if self.schedule not in CATALOGUE and self.text is None:
            raise ScheduleError(
                f"there is no schedule {shown(self.schedule)}; choose one of"
                f" {', '.join(CATALOGUE)}"
            )
        for name in _COUNTS:
            number = plain_integer(name, getattr(self, name))
            if number < 1:
                raise ValueError(f"{name} must be 1 or more, not {number}")
            self._set(name, number)
        for name in _TIMES:
            self._set(name, _times(name, getattr(self, name)))
        for name in ("message", "latency"):
            if getattr(self, name) is not None:
                self._set(name, _seconds(name, getattr(self, name)))
        for name in ("text", "memory"):
            if getattr(self, name) is not None:
                plain_text(name, getattr(self, name))
        if not isinstance(self.layers, bool):
            raise TypeError(f"layers must be true or false, not {shown(self.layers)}")
        if self.cuts is not None:
            cuts = [plain_integer("a cut", cut) for cut in listed("cuts", self.cuts)]
            self._set("cuts", tuple(cuts))
        self._limit()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_json(cls, content: Any) -> Question:
        """Returns a question from the fields that a page sends; others have defaults.

        Raises:
            ValueError: If a field is unknown, or has a wrong value.
        """
        return from_fields(cls, content, "question")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return json.loads(json.dumps(asdict(self)))

    def made(self) -> Schedule:
        """Makes the schedule of one minibatch, and proves it.

        Raises:
            ScheduleError: If the schedule cannot run, or its text cannot be read.
        """
        if self.text is not None:
            schedule = Schedule.parse(self.text)
        else:
            n_stages = self.ranks * self.stages_per_rank
            schedule = create(self.schedule, n_stages, self.microbatches, self.ranks)
        schedule.validate()
        _limit(len(schedule) * self.minibatches)
        return group_weights(schedule, self.groups)

    @property
    def stages_per_rank(self) -> int:
        """The number of stages on a rank, of a schedule of the catalogue."""
        entry = CATALOGUE[self.schedule]
        is_any = entry.placement is Placement.LOOP
        return self.chunks if is_any else entry.stages_per_rank

    def costs(self, schedule: Schedule) -> Costs:
        """Returns the costs of the stages of a schedule, without layers.

        Args:
            schedule: The schedule, of :meth:`made`.

        Raises:
            ValueError: If there are times of each stage, and another number of stages.
        """
        plain = [getattr(self, name) for name in _TIMES]
        edges = {"transfer": self.message or 0.0, "latency": self.latency or 0.0}
        share = schedule.n_ranks / schedule.n_stages
        if not any(isinstance(each, tuple) for each in plain):
            return equal_layers(schedule, *plain, **edges)
        for name, each in zip(_TIMES, plain):
            if isinstance(each, tuple) and len(each) != schedule.n_stages:
                raise ValueError(
                    f"{name} has {len(each)} numbers, but there are"
                    f" {schedule.n_stages} stages: give one number for the layers of"
                    f" each rank, or one for each stage"
                )
        return Costs(
            *(each if isinstance(each, tuple) else share * each for each in plain),
            **edges,
        )

    def with_text(self, schedule: Schedule) -> Question:
        """Returns the same question about another schedule, by its text."""
        return replace(self, text=str(schedule), groups=1)

    def limit(self) -> float | None:
        """Returns the limit of what a rank holds; ``None`` without one.

        Raises:
            ValueError: If the text is neither a number nor a size.
        """
        if self.memory is None or not self.memory.strip():
            return None
        if self.layers:
            return parse_bytes(self.memory)
        try:
            return plain_number("memory", float(self.memory), "Give a number")
        except ValueError:
            raise ValueError(
                f"memory is {shown(self.memory)}: give the number of microbatches that"
                f" a rank may hold, such as 4, or leave it empty"
            ) from None

    def _limit(self) -> None:
        if self.text is None:
            n_stages = self.ranks * self.stages_per_rank
            _limit(_KINDS * n_stages * self.microbatches * self.minibatches)


def _limit(n_actions: int) -> None:
    if n_actions > MOST_ACTIONS:
        raise ValueError(
            f"the schedule has up to {n_actions} actions, and the page draws"
            f" {MOST_ACTIONS}: take fewer ranks, microbatches or minibatches"
        )


def _times(name: str, value: Any) -> Times:
    if isinstance(value, (list, tuple)):
        return tuple(
            _seconds(f"{name} of stage {s}", each) for s, each in enumerate(value)
        )
    return _seconds(name, value)


def _seconds(name: str, value: Any) -> float:
    return float(plain_number(name, value, "Give seconds"))
