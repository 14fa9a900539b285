"""Seconds of the minibatches of a rank, now and usually."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from divisible.schedules.actions import Action
from divisible.schedules.rank_program import RankProgram, Record
from pipeline.watching.process_counters import Counters

#: Number of the newest minibatches that count as now.
NEWEST = 10
# Number of minibatches before those whose median is usual.
_OLDER = 200
# A rank is slower than usual if three quarters of its newest minibatches take this
# much longer. Times of a quiet host scatter by a few percent.
SLOWER = 1.15
# A usual minibatch is longer than this share of the others only now and then.
_LONG = 0.9
# The first minibatches size layers, and compile kernels.
_WARM_UP = 3


class StepSeconds(NamedTuple):
    """The seconds of one minibatch on one rank, from update to update.

    Attributes:
        computing (float): Seconds in forward and backward.
        sending (float): Seconds in sends.
        waiting (float): Seconds in waits for messages.
        updating (float): Seconds of updates and exchanges behind the step.
        between (float): Seconds besides: the script, its data, and Python.
        span (float): Seconds from the first action or message to the last one.
        on_cpu (float): Seconds on a processor.
        queued (float): Seconds of waits for a processor that another thread had.
        stored (float): Bytes read from disks and written to them.
    """

    computing: float
    sending: float
    waiting: float
    updating: float
    between: float
    span: float
    on_cpu: float
    queued: float
    stored: float

    @property
    def blocked(self) -> float:
        """Seconds of computations in which the thread neither ran nor wanted to."""
        return max(0.0, self.computing - self.on_cpu - self.queued)


class Columns:
    """Positions of the actions, sends and receives in the records of a program."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program
        operations = program.operations
        self.is_action = np.array([isinstance(o, Action) for o in operations], bool)
        self.is_send = np.array(
            [not isinstance(o, Action) and o.direction == "send" for o in operations],
            bool,
        )

    def seconds(
        self, record: Record, interval: float, counted: Counters
    ) -> StepSeconds:
        """Returns the seconds of a minibatch.

        Args:
            record (Record): Times of the operations, of the same program.
            interval (float): Seconds from the end of the minibatch before to the end of
                this one.
            counted (Counters): Counters of this interval.
        """
        durations = record.durations
        computing = float(durations[self.is_action].sum())
        sending = float(durations[self.is_send].sum())
        waiting = float(durations.sum()) - computing - sending
        updating = sum(span.end - span.start for span in record.after)
        between = max(0.0, interval - record.span - updating)
        return StepSeconds(
            computing, sending, waiting, updating, between, record.span, *counted
        )


class History:
    """The minibatches of a rank so far: the newest ones, and the usual ones before.

    After :meth:`slowness` has found the rank slow, its minibatches do not become the
    usual ones.

    Example:
        >>> history = History()
        >>> def minibatch(seconds):
        ...     return StepSeconds(seconds, 0, 0, 0, 0, seconds, seconds, 0, 0)
        >>> for seconds in [1.0] * 60 + [1.3] * 10:
        ...     history.add(minibatch(seconds))
        >>> history.slowness()
        {'computing': 1.3, 'between': 1.0}
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all minibatches, such as those of other layers."""
        self._n_seen = 0
        self._newest: deque[StepSeconds] = deque(maxlen=NEWEST)
        self._older: deque[StepSeconds] = deque(maxlen=_OLDER)
        self._quantiles: dict[float, StepSeconds] = {}
        self._is_slow = False

    def add(self, seconds: StepSeconds) -> None:
        """Adds the newest minibatch."""
        self._n_seen += 1
        if self._n_seen <= _WARM_UP:
            return
        if len(self._newest) == NEWEST and not self._is_slow:
            self._older.append(self._newest[0])
            self._quantiles.clear()
        self._newest.append(seconds)

    def __len__(self) -> int:
        """Returns the number of the newest minibatches."""
        return len(self._newest)

    def now(self) -> StepSeconds | None:
        """Returns the medians of the newest minibatches; ``None`` without any."""
        return _quantile(self._newest, 0.5) if self._newest else None

    def usual(self) -> StepSeconds | None:
        """Returns the medians of minibatches before; ``None`` if there are too few."""
        return self._of_older(0.5) if len(self._older) >= NEWEST else None

    def _of_older(self, share: float) -> StepSeconds:
        # Many rows, which are the same ones while a rank is slow.
        if share not in self._quantiles:
            self._quantiles[share] = _quantile(self._older, share)
        return self._quantiles[share]

    def slowness(self) -> dict[str, float]:
        """Returns how many times as long as usual the newest minibatches take.

        Three quarters of them take that much longer, or more. Seconds between the steps
        are compared with the whole interval, as they may usually be none. Without usual
        minibatches the result is empty.
        """
        usual = self.usual()
        if usual is None:
            return {}
        quarter = _quantile(self._newest, 0.25)
        step = usual.span + usual.updating + usual.between
        found = {
            "computing": _ratio(quarter.computing, usual.computing),
            "between": _ratio(step + quarter.between - usual.between, step),
        }
        self._is_slow = any(found[name] > SLOWER for name in self.longer())
        return found

    def longer(self) -> list[str]:
        """Returns what takes longer than in nine of ten usual minibatches.

        On a host with other programs, minibatches scatter by more than `SLOWER`.

        Returns:
            list: ``'computing'``, ``'between'``, both or none.
        """
        if self.usual() is None:
            return []
        quarter, long = _quantile(self._newest, 0.25), self._of_older(_LONG)
        names = "computing", "between"
        return [name for name in names if getattr(quarter, name) > getattr(long, name)]


def _quantile(rows: deque[StepSeconds], share: float) -> StepSeconds:
    return StepSeconds(*np.quantile(np.array(rows), share, axis=0).tolist())


def _ratio(now: float, usual: float) -> float:
    return round(now / usual, 4) if usual > 0 else 1.0
