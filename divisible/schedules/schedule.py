"""A schedule as plain data: for each rank, what it computes in which order.

The same object is printed, checked, simulated and executed::

    >>> from divisible.schedules import one_f_one_b
    >>> schedule = one_f_one_b(n_stages=2, n_microbatches=3)
    >>> print(schedule)
    1f1b: 3 microbatches, 2 stages on ranks 0 1
    step      0   1   2   3   4   5   6   7
    rank 0  0F0 0F1   . 0B0 0F2 0B1   . 0B2
    rank 1    . 1F0 1B0 1F1 1B1 1F2 1B2   .

Each column is one step in which every rank runs at most one action; a point is a
rank that idles because it waits for another one's result. All actions take one step
in this drawing, whatever they cost in seconds; the `simulator` knows the costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from divisible.schedules.actions import (
    FORWARD,
    KINDS,
    Action,
    Message,
    Operation,
    ScheduleError,
    parse_operation,
)
from divisible.schedules.grid import draw, read
from divisible.schedules.lowering import lower
from divisible.schedules.validation import Report, validate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "KINDS",
    "Action",
    "Message",
    "Operation",
    "Report",
    "Schedule",
    "ScheduleError",
    "lower",
    "parse_operation",
    "validate",
]

_CODES = {kind: code for code, kind in enumerate(KINDS)}


class ActionList(Sequence):
    """The actions of one rank, in order; behaves like a list of `Action`.

    The actions are kept as integers and made when they are looked at, so that a
    schedule of millions of them stays small.
    """

    def __init__(self, stage: np.ndarray, kind: np.ndarray, microbatch: np.ndarray):
        self._columns = stage, kind, microbatch

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, at):
        if isinstance(at, slice):
            return ActionList(*(column[at] for column in self._columns))
        stage, kind, microbatch = (column[at] for column in self._columns)
        return Action(int(stage), KINDS[kind], int(microbatch))

    def __iter__(self) -> Iterator[Action]:
        for stage, kind, microbatch in zip(
            *(column.tolist() for column in self._columns)
        ):
            yield Action(stage, KINDS[kind], microbatch)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ActionList):
            return all(map(np.array_equal, self._columns, other._columns))
        if isinstance(other, (list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other))
        return NotImplemented

    __hash__ = None

    def __repr__(self) -> str:
        shown = " ".join(map(str, self[:20]))
        return f"<{len(self)} actions: {shown}{' ...' if len(self) > 20 else ''}>"


class Schedule:
    """For each rank, the order in which it computes.

    A schedule is a value: it never changes, and two of them are equal if they do the
    same on the same ranks (`name` is only a label). Communication is not part of it;
    `lower` derives that. Building one checks each action alone, `validate` checks
    that they fit together.

    Args:
        actions: For each rank its actions in order: `Action` objects or text such as
            ``'2F0'``.
        stage_ranks: For each stage the rank that holds it. Left out, it is read from
            ``actions``.
        n_microbatches: How many microbatches the minibatch is cut into. Left out, it
            is read from ``actions``.
        name: What to call it in logs and errors.

    Attributes:
        name (str): The label.
        actions (tuple of ActionList): For each rank its actions in order, list-like.
        n_ranks (int): Number of ranks.
        n_stages (int): Number of stages.
        n_microbatches (int): Number of microbatches.
        stage_ranks (tuple of int): For each stage its rank.
        rank, stage, kind, microbatch (numpy.ndarray): The actions of all ranks, one
            rank after the other, as read-only integer arrays; ``KINDS[kind[k]]`` is
            the kind of action ``k``.
        offsets (numpy.ndarray): Rank ``r`` has the actions ``offsets[r]`` up to
            ``offsets[r + 1]``.

    Raises:
        ScheduleError: If an action is malformed or names a stage or microbatch that
            does not exist, or if the stage-to-rank map cannot be read from
            ``actions``.

    Example:
        >>> schedule = Schedule([["0F0", "0B0"], ["1F0", "1B0"]])
        >>> schedule.actions[1]
        <2 actions: 1F0 1B0>
        >>> schedule.n_stages, schedule.n_microbatches, schedule.stage_ranks
        (2, 1, (0, 1))
    """

    def __init__(
        self,
        actions: Iterable[Iterable[Action | str]],
        stage_ranks: Sequence[int] | None = None,
        n_microbatches: int | None = None,
        name: str = "schedule",
    ) -> None:
        stages: list[int] = []
        kinds: list[int] = []
        microbatches: list[int] = []
        offsets = [0]
        for rank, row in enumerate(actions):
            for entry in row:
                try:
                    action = Action.parse(entry) if isinstance(entry, str) else entry
                    stage, kind, microbatch = action
                    stages.append(index(stage))
                    microbatches.append(index(microbatch))
                    kinds.append(_CODES[kind])
                except (ScheduleError, TypeError, ValueError, KeyError) as error:
                    raise ScheduleError(
                        f"rank {rank}, position {len(kinds) - offsets[-1]}: "
                        f"{entry!r} is not an action such as 2F0: {error}"
                    ) from error
            offsets.append(len(stages))
        self._fill(
            stages, kinds, microbatches, offsets, stage_ranks, n_microbatches, name
        )

    @classmethod
    def from_arrays(
        cls,
        stage: ArrayLike,
        kind: ArrayLike,
        microbatch: ArrayLike,
        offsets: ArrayLike,
        stage_ranks: Sequence[int] | None = None,
        n_microbatches: int | None = None,
        name: str = "schedule",
    ) -> Schedule:
        """Builds a schedule from integers, without one object per action.

        Args:
            stage: Integers of shape ``(n_actions,)``, all ranks one after the other.
            kind: Positions in `KINDS`, of the same shape.
            microbatch: Integers of the same shape.
            offsets: Integers of shape ``(n_ranks + 1,)``: where each rank begins.
            stage_ranks: See the class.
            n_microbatches: See the class.
            name: See the class.

        Returns:
            The schedule.

        Raises:
            ScheduleError: See the class.
        """
        schedule = cls.__new__(cls)
        schedule._fill(
            stage, kind, microbatch, offsets, stage_ranks, n_microbatches, name
        )
        return schedule

    def _fill(
        self, stage, kind, microbatch, offsets, stage_ranks, n_microbatches, name
    ) -> None:
        self.stage = np.array(stage, np.int32)
        self.kind = np.array(kind, np.int8)
        self.microbatch = np.array(microbatch, np.int32)
        self.offsets = np.array(offsets, np.int64)
        for array in (self.stage, self.kind, self.microbatch, self.offsets):
            array.flags.writeable = False
        self.actions = tuple(
            ActionList(
                self.stage[begin:end], self.kind[begin:end], self.microbatch[begin:end]
            )
            for begin, end in zip(self.offsets[:-1], self.offsets[1:])
        )
        self.name = str(name)
        self.n_ranks = self.offsets.size - 1
        if self.n_ranks < 1:
            raise ScheduleError(f"schedule {name!r} has no ranks; give at least one")
        if stage_ranks is None:
            stage_ranks = self._infer_stage_ranks()
        self.stage_ranks = tuple(int(rank) for rank in stage_ranks)
        self.n_stages = len(self.stage_ranks)
        if n_microbatches is None:
            n_microbatches = self.microbatch.max(initial=-1) + 1
        self.n_microbatches = int(n_microbatches)
        for stage_number, rank in enumerate(self.stage_ranks):
            if not 0 <= rank < self.n_ranks:
                raise ScheduleError(
                    f"stage_ranks puts stage {stage_number} on rank {rank}, but there "
                    f"are actions for ranks 0 to {self.n_ranks - 1}"
                )
        for what, column, bound in (
            ("stage", self.stage, self.n_stages),
            ("kind", self.kind, len(KINDS)),
            ("microbatch", self.microbatch, self.n_microbatches),
        ):
            wrong = np.flatnonzero((column < 0) | (column >= bound))
            if wrong.size:
                rank = int(np.searchsorted(self.offsets, wrong[0], "right")) - 1
                raise ScheduleError(
                    f"rank {rank}, position {wrong[0] - self.offsets[rank]}: {what} "
                    f"{column[wrong[0]]} does not exist; there are {bound}"
                )

    @cached_property
    def action_ranks(self) -> np.ndarray:
        """For each action of all ranks the rank that runs it."""
        rank = np.repeat(np.arange(self.n_ranks), np.diff(self.offsets))
        rank.flags.writeable = False
        return rank

    def _infer_stage_ranks(self) -> np.ndarray:
        stages, first = np.unique(self.stage, return_index=True)
        if not np.array_equal(stages, np.arange(stages.size)):
            raise ScheduleError(
                f"the actions name stages {stages.tolist()}, with gaps; pass "
                "stage_ranks to say which rank holds which stage"
            )
        ranks = self.action_ranks[first]
        strayed = np.flatnonzero(ranks[self.stage] != self.action_ranks)
        if strayed.size:
            stage = self.stage[strayed[0]]
            raise ScheduleError(
                f"stage {stage} has actions on rank {ranks[stage]} and on rank "
                f"{self.action_ranks[strayed[0]]}; pass stage_ranks to say which one "
                f"holds it"
            )
        return ranks

    def __len__(self) -> int:
        """Returns the number of actions on all ranks."""
        return self.stage.size

    def rank_stages(self, rank: int) -> tuple[int, ...]:
        """Tells which stages a rank holds.

        Args:
            rank: From 0.

        Returns:
            The stages in ascending order.
        """
        return tuple(s for s, owner in enumerate(self.stage_ranks) if owner == rank)

    def forward_only(self) -> Schedule:
        """Leaves out everything but the forward passes, for evaluation.

        Returns:
            The schedule with the same forward actions in the same order.

        Example:
            >>> print(Schedule([["0F0", "0F1", "0B0", "0B1"]]).forward_only())
            schedule forward: 2 microbatches, 1 stage on rank 0
            step      0   1
            rank 0  0F0 0F1
        """
        chosen = self.kind == FORWARD
        offsets = np.concatenate([[0], np.cumsum(chosen)])[self.offsets]
        return Schedule.from_arrays(
            self.stage[chosen],
            self.kind[chosen],
            self.microbatch[chosen],
            offsets,
            self.stage_ranks,
            self.n_microbatches,
            f"{self.name} forward",
        )

    def validate(self) -> Report:
        """Proves that the schedule can run, as `validation.validate` says.

        Returns:
            The peaks of held activations and of pending weight gradients.

        Raises:
            ScheduleError: If it cannot, with the grid and the fault marked.
        """
        return validate(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            self.stage_ranks == other.stage_ranks
            and self.n_microbatches == other.n_microbatches
            and all(
                np.array_equal(getattr(self, column), getattr(other, column))
                for column in ("offsets", "stage", "kind", "microbatch")
            )
        )

    def __hash__(self) -> int:
        return hash((self.stage_ranks, self.n_microbatches, self.kind.tobytes()))

    def __repr__(self) -> str:
        return (
            f"<Schedule {self.name}: {self.n_ranks} ranks, {self.n_stages} stages, "
            f"{self.n_microbatches} microbatches, {len(self)} actions>"
        )

    def __str__(self) -> str:
        return draw(self)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Reads the grid that ``str(schedule)`` writes.

        Only the order of the actions counts, not the columns, so a schedule written
        by hand needs no alignment and no points. Marks (``!``) are ignored.

        Args:
            text: The header line and one line per rank.

        Returns:
            The schedule.

        Raises:
            ScheduleError: If a line cannot be read.

        Example:
            >>> schedule = Schedule.parse('''
            ...     mine: 2 microbatches, 2 stages on ranks 0 1
            ...     rank 0  0F0 0F1 0B0 0B1
            ...     rank 1  1F0 1B0 1F1 1B1
            ... ''')
            >>> schedule.actions[1][0]
            Action(stage=1, kind='F', microbatch=0)
        """
        return cls(*read(text))
