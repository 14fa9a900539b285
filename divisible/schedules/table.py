"""The actions of all ranks as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.actions import KINDS, Action, ScheduleError

#: The position of each kind in `KINDS`.
CODES = {kind: code for code, kind in enumerate(KINDS)}


class ActionList(Sequence):
    """The actions of one rank, in order; behaves like a list of `Action`.

    The actions are kept as integers and become objects only when they are read, so that
    a schedule of millions of them stays small.
    """

    def __init__(
        self,
        stage: np.ndarray,
        kind: np.ndarray,
        microbatch: np.ndarray,
        count: np.ndarray,
    ) -> None:
        self._columns = stage, kind, microbatch, count

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, at):
        if isinstance(at, slice):
            return ActionList(*(column[at] for column in self._columns))
        stage, kind, *microbatches = (int(column[at]) for column in self._columns)
        return Action.of(stage, KINDS[kind], *microbatches)

    def __iter__(self) -> Iterator[Action]:
        for stage, kind, *microbatches in zip(
            *(column.tolist() for column in self._columns)
        ):
            yield Action.of(stage, KINDS[kind], *microbatches)

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


class Table:
    """The actions of all ranks, and which rank holds which stage.

    Each action alone is checked; `validation` proves that they fit together.

    Args:
        stage: Integers of shape ``(n_actions,)``, all ranks one after the other.
        kind: Positions in `KINDS`, of the same shape.
        microbatch: The first microbatch of each action; integers of the same shape.
        offsets: Position of the first action of each rank, and the number of actions:
            integers of shape ``(n_ranks + 1,)``.
        stage_ranks: For each stage its rank. Left out, it is read from the actions.
        n_microbatches: Number of microbatches. Left out, it is read from the actions.
        name: Label of the table in logs and errors.
        count: Number of consecutive microbatches of each action; 1 by default.
        weight_versions: Number of versions of the weights, 1 or 2; see
            `divisible.schedules.weight_versions`.

    Raises:
        ScheduleError: If an action names a stage, a kind or a microbatch that does not
            exist. If the ranks of the stages cannot be read from the actions. If the
            number of versions is another one.
    """

    def __init__(
        self,
        stage: ArrayLike,
        kind: ArrayLike,
        microbatch: ArrayLike,
        offsets: ArrayLike,
        stage_ranks: Iterable[int] | None = None,
        n_microbatches: int | None = None,
        name: str = "schedule",
        count: ArrayLike | None = None,
        weight_versions: int = 1,
    ) -> None:
        self.stage = np.array(stage, np.int32)
        self.kind = np.array(kind, np.int8)
        self.microbatch = np.array(microbatch, np.int32)
        if count is None:
            count = np.ones_like(self.microbatch)
        self.count = np.array(count, np.int32)
        self.offsets = np.array(offsets, np.int64)
        columns = self.stage, self.kind, self.microbatch, self.count
        for array in (*columns, self.offsets):
            array.flags.writeable = False
        self.actions = tuple(
            ActionList(*(column[begin:end] for column in columns))
            for begin, end in zip(self.offsets[:-1], self.offsets[1:])
        )
        self.name = str(name)
        if weight_versions not in (1, 2):
            raise ScheduleError(
                f"schedule {name!r} has {weight_versions} weight versions; give 1 or 2"
            )
        self.weight_versions = int(weight_versions)
        self.n_ranks = self.offsets.size - 1
        if self.n_ranks < 1:
            raise ScheduleError(f"schedule {name!r} has no ranks; give at least one")
        if stage_ranks is None:
            stage_ranks = self._infer_stage_ranks()
        self.stage_ranks = tuple(int(rank) for rank in stage_ranks)
        self.n_stages = len(self.stage_ranks)
        if n_microbatches is None:
            n_microbatches = (self.microbatch + self.count).max(initial=0)
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
            ("microbatch", self.microbatch + self.count - 1, self.n_microbatches),
        ):
            wrong = np.flatnonzero((column < 0) | (column >= bound))
            if wrong.size:
                raise ScheduleError(
                    f"{self._position(wrong[0])}: {what} {column[wrong[0]]} does not "
                    f"exist; there are {bound}"
                )
        empty = np.flatnonzero(self.count < 1)
        if empty.size:
            raise ScheduleError(
                f"{self._position(empty[0])}: an action on {self.count[empty[0]]} "
                f"microbatches; each action takes at least one"
            )

    def _position(self, number: int) -> str:
        rank = int(np.searchsorted(self.offsets, number, "right")) - 1
        return f"rank {rank}, position {number - self.offsets[rank]}"

    @cached_property
    def action_ranks(self) -> np.ndarray:
        """For each action of all ranks the rank that runs it."""
        rank = np.repeat(np.arange(self.n_ranks), np.diff(self.offsets))
        rank.flags.writeable = False
        return rank

    @cached_property
    def members(self) -> tuple[np.ndarray, np.ndarray]:
        """For each microbatch of each action, the action's number and the microbatch.

        The microbatches of one action lie together, in ascending order.
        """
        action = np.repeat(np.arange(self.stage.size), self.count)
        first = np.cumsum(self.count) - self.count
        within = np.arange(action.size) - first[action]
        return action, self.microbatch[action] + within

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
        """Returns the stages that a rank holds.

        Args:
            rank: The rank, from 0.

        Returns:
            The stages in ascending order.
        """
        return tuple(s for s, owner in enumerate(self.stage_ranks) if owner == rank)

    def action(self, number: int) -> Action:
        """Returns an action by its number among those of all ranks."""
        return Action.of(
            int(self.stage[number]),
            KINDS[self.kind[number]],
            int(self.microbatch[number]),
            int(self.count[number]),
        )
