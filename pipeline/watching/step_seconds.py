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
        self._usual: StepSeconds | None = None
        self._is_slow = False

    def add(self, seconds: StepSeconds) -> None:
        """Adds the newest minibatch."""
        self._n_seen += 1
        if self._n_seen <= _WARM_UP:
            return
        if len(self._newest) == NEWEST and not self._is_slow:
            self._older.append(self._newest[0])
            self._usual = None
        self._newest.append(seconds)

    def __len__(self) -> int:
        """Returns the number of the newest minibatches."""
        return len(self._newest)

    def now(self) -> StepSeconds | None:
        """Returns the medians of the newest minibatches; ``None`` without any."""
        return _medians(self._newest)

    def usual(self) -> StepSeconds | None:
        """Returns the medians of minibatches before; ``None`` if there are too few."""
        if len(self._older) < NEWEST:
            return None
        # Many rows, which are the same ones while a rank is slow.
        if self._usual is None:
            self._usual = _medians(self._older)
        return self._usual

    def slowness(self) -> dict[str, float]:
        """Returns how many times as long as usual the newest minibatches take.

        Three quarters of them take that much longer, or more. Seconds between the steps
        are compared with the whole interval, as they may usually be none. Without usual
        minibatches the result is empty.
        """
        usual = self.usual()
        if usual is None:
            return {}
        rows = np.array(self._newest)
        quarter = StepSeconds(*np.quantile(rows, 0.25, axis=0).tolist())
        step = usual.span + usual.updating + usual.between
        found = {
            "computing": _ratio(quarter.computing, usual.computing),
            "between": _ratio(step + quarter.between - usual.between, step),
        }
        self._is_slow = max(found.values()) > SLOWER
        return found


def _medians(rows: deque[StepSeconds]) -> StepSeconds | None:
    if not rows:
        return None
    return StepSeconds(*np.median(np.array(rows), axis=0).tolist())


def _ratio(now: float, usual: float) -> float:
    return round(now / usual, 4) if usual > 0 else 1.0
