"""A schedule as plain data: the computations of each rank, in order.

The same object is printed, checked, simulated and executed::

    >>> from divisible.schedules import one_f_one_b
    >>> schedule = one_f_one_b(n_stages=2, n_microbatches=3)
    >>> print(schedule)
    1f1b: 3 microbatches, 2 stages on ranks 0 1
    step      0   1   2   3   4   5   6   7
    rank 0  0F0 0F1   . 0B0 0F2 0B1   . 0B2
    rank 1    . 1F0 1B0 1F1 1B1 1F2 1B2   .

Each column is one step in which every rank runs at most one action. A point is a
rank that idles because it waits for a result of another rank. All actions take one step
in this drawing, whatever they cost in seconds; the `simulator` knows the costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import index

import numpy as np
from numpy.typing import ArrayLike

from divisible.schedules.actions import FORWARD, Action, ScheduleError
from divisible.schedules.grid import draw, read
from divisible.schedules.grid_html import grid_html
from divisible.schedules.held import Moments, Report, moments
from divisible.schedules.table import CODES, Table
from divisible.schedules.validation import validate


class Schedule(Table):
    """For each rank, the order in which it computes.

    A schedule is a value: it never changes. Two schedules are equal if they have the
    same actions on the same ranks, and as many weight versions (`name` is a label).
    Communication is not part of a schedule; `lower` derives it. The constructor checks
    each action alone, `validate` checks that they fit together.

    Args:
        actions: For each rank its actions in order: `Action` objects or text such as
            ``'2F0'``.
        stage_ranks: For each stage the rank that holds it. Left out, it is read from
            ``actions``.
        n_microbatches: Number of microbatches of a minibatch. Left out, it is read from
            ``actions``.
        name: Label of the schedule in logs and errors.
        weight_versions: Number of versions of the weights. With 2, minibatches follow
            each other without a flush, and gradients come one step late
            (`divisible.schedules.weight_versions`).

    Attributes:
        name (str): The label.
        actions (tuple of ActionList): For each rank its actions in order, list-like.
        n_ranks (int): Number of ranks.
        n_stages (int): Number of stages.
        n_microbatches (int): Number of microbatches.
        stage_ranks (tuple of int): For each stage its rank.
        weight_versions (int): Number of versions of the weights.
        rank, stage, kind, microbatch, count (numpy.ndarray): The actions of all ranks,
            one rank after the other, as read-only integer arrays; ``KINDS[kind[k]]`` is
            the kind of action ``k``, which takes ``count[k]`` microbatches from
            ``microbatch[k]`` on.
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
        weight_versions: int = 1,
    ) -> None:
        stages: list[int] = []
        kinds: list[int] = []
        microbatches: list[int] = []
        counts: list[int] = []
        offsets = [0]
        for rank, row in enumerate(actions):
            for entry in row:
                try:
                    action = Action.parse(entry) if isinstance(entry, str) else entry
                    stage, kind, microbatch = action
                    first, count = microbatch, 1
                    if isinstance(microbatch, range):
                        first, count = microbatch.start, len(microbatch)
                        if microbatch != range(first, first + count):
                            raise ValueError("microbatches of a group are consecutive")
                    stages.append(index(stage))
                    microbatches.append(index(first))
                    counts.append(count)
                    kinds.append(CODES[kind])
                except (ScheduleError, TypeError, ValueError, KeyError) as error:
                    raise ScheduleError(
                        f"rank {rank}, position {len(kinds) - offsets[-1]}: "
                        f"{entry!r} is not an action such as 2F0: {error}"
                    ) from error
            offsets.append(len(stages))
        super().__init__(
            stages,
            kinds,
            microbatches,
            offsets,
            stage_ranks,
            n_microbatches,
            name,
            counts,
            weight_versions,
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
        count: ArrayLike | None = None,
        weight_versions: int = 1,
    ) -> Schedule:
        """Builds a schedule from integers, without one object per action.

        Args:
            stage: Integers of shape ``(n_actions,)``, all ranks one after the other.
            kind: Positions in `KINDS`, of the same shape.
            microbatch: The first microbatch of each action; integers of the same shape.
            offsets: Position of the first action of each rank, and the number of
                actions: integers of shape ``(n_ranks + 1,)``.
            stage_ranks: See the class.
            n_microbatches: See the class.
            name: See the class.
            count: Number of consecutive microbatches of each action; 1 by default.
            weight_versions: See the class.

        Returns:
            The schedule.

        Raises:
            ScheduleError: See the class.
        """
        schedule = cls.__new__(cls)
        Table.__init__(
            schedule,
            stage,
            kind,
            microbatch,
            offsets,
            stage_ranks,
            n_microbatches,
            name,
            count,
            weight_versions,
        )
        return schedule

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
            self.count[chosen],
        )

    def validate(self) -> Report:
        """Proves that the schedule can run; see `validation.validate`.

        Returns:
            The peaks of held activations and of pending weight gradients.

        Raises:
            ScheduleError: If it cannot run. The message shows the grid and the fault.
        """
        return self._report

    @cached_property
    def _report(self) -> Report:
        return validate(self)

    @cached_property
    def moments(self) -> Moments:
        """The moments at which the stages may hold most; see `held.moments`."""
        return moments(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            self.stage_ranks == other.stage_ranks
            and self.n_microbatches == other.n_microbatches
            and self.weight_versions == other.weight_versions
            and all(
                np.array_equal(getattr(self, column), getattr(other, column))
                for column in ("offsets", "stage", "kind", "microbatch", "count")
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

    def _repr_html_(self) -> str:
        """Returns the grid as a notebook shows it, in the colours of timelines."""
        return grid_html(self)

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
