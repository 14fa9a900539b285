"""Chooses the size of groups of weight gradients: ``weight_groups='auto'``.

::

    minibatch    1  2  3  4    5  6  7  8    9 10 11 12
    groups of    1  1  1  1    2  2  2  2    4  4  4  4    ...
    timed           x  x  x       x  x  x       x  x  x

The first minibatch of each size takes memory from the system, so it is not timed. The
sizes double, up to all microbatches, until a size is not clearly faster than the one
before it, or a rank has no memory for it. Groups only change the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from divisible.schedules.groups import group_weights
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline

#: Number of minibatches of each size that are not timed, and number of those that are.
N_WARM, N_TIMED = 1, 3
# A larger group holds more, so it must be faster by more than noise.
_CLEARLY = 0.99


class GroupTrial:
    """The minibatches by which the size of groups is chosen.

    Args:
        schedule: The schedule without groups of weight gradients.

    Attributes:
        size: Number of microbatches in a group now.

    Example:
        >>> from divisible.schedules import gpipe
        >>> trial = GroupTrial(gpipe(2, 4))
        >>> for seconds in (9, 3, 3, 3):
        ...     is_timed = trial.note(lambda: Timeline([(0, "0F0", 0, seconds)]))
        >>> is_timed, trial.next_size(), trial.fastest()
        (True, 2, 1)
    """

    def __init__(self, schedule: Schedule) -> None:
        self._plain = schedule
        self.size = 1
        self._n_seen = 0
        # The seconds of the timed minibatches of each size.
        self._seconds: dict[int, list[float]] = {}

    @property
    def schedule(self) -> Schedule:
        """The schedule with groups of the present size."""
        return group_weights(self._plain, self.size)

    def note(self, timeline: Callable[[], Timeline]) -> bool:
        """Records a minibatch, if it is to be timed.

        Args:
            timeline: Returns the timeline of the minibatch; called only if it is timed.

        Returns:
            Whether enough minibatches of this size were timed.
        """
        self._n_seen += 1
        if self._n_seen > N_WARM:
            self._seconds.setdefault(self.size, []).append(timeline().makespan)
        is_timed = self._n_seen == N_WARM + N_TIMED
        if is_timed:
            self._n_seen = 0
        return is_timed

    def next_size(self) -> int | None:
        """Returns the size to try next; ``None`` if there is none."""
        most = self._plain.n_microbatches
        if self.size == most or self.fastest() != self.size:
            return None
        return min(2 * self.size, most)

    def pending_more(self, size: int) -> np.ndarray:
        """Returns how many more microbatches wait for their W with another size.

        Args:
            size: The other size.

        Returns:
            For each rank the difference of the peaks, in the unit of
            :class:`~divisible.schedules.held.Report`.
        """
        now, then = (
            group_weights(self._plain, each).validate() for each in (self.size, size)
        )
        return np.subtract(then.pending, now.pending)

    def fastest(self) -> int:
        """Returns the smallest of the timed sizes that none clearly surpasses."""
        best, least = 1, np.inf
        for size, seconds in sorted(self._seconds.items()):
            median = float(np.median(seconds))
            if median < _CLEARLY * least:
                best, least = size, median
        return best
