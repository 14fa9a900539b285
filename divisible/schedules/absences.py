"""When microbatches are on disk between forward and backward, and who waits for them.

The schedule shows when each microbatch is needed again. The disk is asked to read it
one action earlier, so that reading overlaps with that action::

    actions    F0      F1      F2      B0      B1      B2
    disk               write 0 write 1 write 2
                               read 0  read 1  read 2

A microbatch whose backward is the next action on its rank stays in memory. Only one
microbatch is written at a time: a second one waits for the first. A rank's disk does
one thing at a time, in the order of the requests.

Microbatches that wait in fewer bits leave and return at the same actions. The forward
then ends with rounding, and the action that needs the microbatch begins with widening.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from divisible.schedules.dependencies import NONE, locate
from divisible.schedules.table import Table


class Absences(NamedTuple):
    """Microbatches that leave memory, each as the numbers of two actions.

    Attributes:
        leaves: The number of the forward after which each microbatch leaves.
        returns: The number of the first action that needs the microbatch again.
    """

    leaves: np.ndarray
    returns: np.ndarray


def absences(schedule: Table, stages: np.ndarray | None = None) -> Absences:
    """Returns when microbatches are outside memory.

    Args:
        schedule: A valid schedule. Without backwards no microbatch leaves.
        stages: For each stage whether its activations move to the disk; all by default.

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
    """Returns the absences of one rank, as positions among its own actions.

    Args:
        schedule: A valid schedule. Without backwards no microbatch leaves.
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
    """Returns the actions between which a microbatch takes no memory at all.

    A microbatch is written while the action behind its forward runs. It is read while
    the action before its return runs.

    Args:
        schedule: A valid schedule.
        stages: For each stage whether its activations move to the disk.

    Example:
        >>> from divisible.schedules import gpipe
        >>> gone, back = away(gpipe(n_stages=1, n_microbatches=5), np.array([True]))
        >>> gone.tolist(), back.tolist()
        ([2, 3, 4, 5, 6], [4, 5, 6, 7, 8])
    """
    leaves, returns = absences(schedule, stages)
    long = returns - leaves > 3
    return Absences(leaves[long] + 2, returns[long] - 1)


def conversions(schedule: Table, narrow: np.ndarray, widen: np.ndarray) -> np.ndarray:
    """Returns the seconds that each action takes for numbers of fewer bits.

    Args:
        schedule: A valid schedule.
        narrow: Seconds to round what a microbatch holds, for each stage.
        widen: Seconds to widen it again, for each stage.

    Returns:
        Seconds of shape (n_actions,).

    Example:
        >>> from divisible.schedules import one_f_one_b
        >>> schedule = one_f_one_b(n_stages=2, n_microbatches=2)
        >>> [[str(action) for action in row] for row in schedule.actions]
        [['0F0', '0F1', '0B0', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
        >>> conversions(schedule, np.array([0.1, 0.1]), np.array([0.2, 0.2])).tolist()
        [0.1, 0.1, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0]
    """
    seconds = np.zeros(schedule.stage.size)
    leaves, returns = absences(schedule, narrow + widen > 0)
    np.add.at(seconds, leaves, narrow[schedule.stage[leaves]])
    np.add.at(seconds, returns, widen[schedule.stage[returns]])
    return seconds


class Disks:
    """The disks of the ranks, in a simulation.

    Args:
        schedule: A valid schedule.
        write: Seconds to write the activations of a microbatch, for each stage.
        read: Seconds to read them, for each stage. No microbatch leaves a stage for
            which both times are 0.
    """

    def __init__(self, schedule: Table, write: np.ndarray, read: np.ndarray) -> None:
        leaves, returns = absences(schedule, write + read > 0)
        self._ranks = schedule.action_ranks.tolist()
        stage = schedule.stage[leaves]
        self._write = dict(zip(leaves.tolist(), write[stage].tolist()))
        self._read = dict(zip(returns.tolist(), read[stage].tolist()))
        self._left = dict(zip(returns.tolist(), leaves.tolist()))
        # For each rank: when its disk is idle, and when its last write is complete.
        self._idle = [0.0] * schedule.n_ranks
        self._written = [0.0] * schedule.n_ranks
        # For each action: when the microbatch that it needs is in memory again.
        self._back: dict[int, float] = {}

    def before(self, action: int, now: float) -> float:
        """Returns when a rank can begin its next action."""
        if action in self._read:
            self._fetch(action, now)
            now = max(now, self._back.pop(action))
        soon = action + 1
        if self._left.get(soon, action) < action:
            self._fetch(soon, now)
        return now

    def after(self, action: int, now: float) -> float:
        """Returns when a rank whose action has ended can go on."""
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
