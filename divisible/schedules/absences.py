"""When microbatches are on disk between forward and backward, and what waits for that.

The schedule says when each is needed again. It is asked for one action earlier, so that
reading it overlaps with that action::

    actions    F0      F1      F2      B0      B1      B2
    disk               write 0 write 1 write 2
                               read 0  read 1  read 2

One whose backward is the next action on its rank stays in memory. Only one is written
at a time: a second one waits for the first. A rank's disk does one thing at a time, in
the order in which it is asked to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from divisible.schedules.dependencies import NONE, locate
from divisible.schedules.table import Table


class Absences(NamedTuple):
    """Microbatches that leave memory, each as two numbers of actions.

    Attributes:
        leaves: Of the forward after which it leaves.
        returns: Of the first action that needs it again.
    """

    leaves: np.ndarray
    returns: np.ndarray


def absences(schedule: Table, stages: np.ndarray | None = None) -> Absences:
    """Returns when microbatches are elsewhere.

    Args:
        schedule: A valid schedule; without backwards nothing leaves.
        stages: For each stage whether it holds what it holds elsewhere; all by default.

    Example:
        >>> from divisible.schedules import gpipe
        >>> leaves, returns = absences(gpipe(n_stages=1, n_microbatches=3))
        >>> leaves.tolist(), returns.tolist()
        ([0, 1, 2], [3, 4, 5])
    """
    forward, backward, _, again = locate(schedule)
    first = np.where(again == NONE, backward, again)
    is_away = first - forward > 1
    if stages is not None:
        is_away &= np.asarray(stages, bool)[:, None]
    order = np.argsort(forward[is_away])
    return Absences(forward[is_away][order], first[is_away][order])


def absences_on(schedule: Table, rank: int) -> Absences:
    """Returns those of one rank, as positions among its own actions.

    Args:
        schedule: As of :func:`absences`.
        rank: The rank.

    Example:
        >>> from divisible.schedules import gpipe
        >>> leaves, returns = absences_on(gpipe(n_stages=2, n_microbatches=2), rank=1)
        >>> leaves.tolist(), returns.tolist()
        ([0, 1], [2, 3])
    """
    leaves, returns = absences(schedule)
    start, stop = schedule.offsets[rank : rank + 2]
    mine = (start <= leaves) & (leaves < stop)
    return Absences(leaves[mine] - start, returns[mine] - start)


def away(schedule: Table, stages: np.ndarray) -> Absences:
    """Returns from which action on, and until which one, memory has nothing of them.

    A microbatch is written while the action behind its forward runs, and read while the
    one before its return does.

    Args:
        schedule: A valid schedule.
        stages: For each stage whether it holds what it holds elsewhere.

    Example:
        >>> from divisible.schedules import gpipe
        >>> gone, back = away(gpipe(n_stages=1, n_microbatches=5), np.array([True]))
        >>> gone.tolist(), back.tolist()
        ([2, 3, 4, 5, 6], [4, 5, 6, 7, 8])
    """
    leaves, returns = absences(schedule, stages)
    long = returns - leaves > 3
    return Absences(leaves[long] + 2, returns[long] - 1)


class Disks:
    """The disks of the ranks, in a simulation.

    Args:
        schedule: A valid one.
        write: For each stage the seconds to write what it holds of a microbatch.
        read: To read it; where both are 0 nothing leaves.
    """

    def __init__(self, schedule: Table, write: np.ndarray, read: np.ndarray) -> None:
        leaves, returns = absences(schedule, write + read > 0)
        self._ranks = schedule.action_ranks.tolist()
        stage = schedule.stage[leaves]
        self._write = dict(zip(leaves.tolist(), write[stage].tolist()))
        self._read = dict(zip(returns.tolist(), read[stage].tolist()))
        self._left = dict(zip(returns.tolist(), leaves.tolist()))
        # By rank: when the disk is idle, and when what was written last is there.
        self._idle = [0.0] * schedule.n_ranks
        self._written = [0.0] * schedule.n_ranks
        # When what was asked for is in memory, by the action that needs it.
        self._back: dict[int, float] = {}

    def before(self, action: int, now: float) -> float:
        """Returns when an action can begin that is the next one of its rank."""
        if action in self._read:
            self._fetch(action, now)
            now = max(now, self._back.pop(action))
        soon = action + 1
        if self._left.get(soon, action) < action:
            self._fetch(soon, now)
        return now

    def after(self, action: int, now: float) -> float:
        """Returns when a rank can go on whose action has ended."""
        if action in self._write:
            rank = self._ranks[action]
            now = max(now, self._written[rank])
            done = max(now, self._idle[rank]) + self._write[action]
            self._written[rank] = self._idle[rank] = done
        return now

    def _fetch(self, action: int, now: float) -> None:
        if action not in self._back:
            rank = self._ranks[action]
            done = max(now, self._idle[rank]) + self._read[action]
            self._back[action] = self._idle[rank] = done
