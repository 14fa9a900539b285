"""The number of minibatches between two copies, chosen by their measured cost.

::

    a copy takes 0.9 s, a minibatch 5 s:    0.9 / (0.03 * 5) = 6   every 6th is copied
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

#: Most seconds of copies, for each second of training.
SHARE = 0.03
# The first copies make folders, and may wait for ranks that start.
_N_RECENT = 3


class Pace:
    """The choice of the minibatches that are copied, the same on all ranks.

    Attributes:
        every (int): Number of minibatches from one copy to the next.

    Example:
        >>> pace = Pace()
        >>> pace.note([(0.8, 5.0), (0.9, 4.9)])
        >>> pace.every
        6
        >>> [pace.is_due() for _ in range(12)].count(True)
        2
    """

    def __init__(self) -> None:
        self.every = 1
        self._n_since = 0
        self._recent: deque[float] = deque(maxlen=_N_RECENT)

    def is_due(self) -> bool:
        """Returns whether this minibatch is copied; called once for each."""
        self._n_since += 1
        if self._n_since < self.every:
            return False
        self._n_since = 0
        return True

    def note(self, seconds: Sequence[tuple[float, float]]) -> None:
        """Chooses ``every`` from the times of a copy.

        Args:
            seconds: For each rank the seconds of the copy, and of a minibatch before
                it; 0 if there was none.
        """
        copies, steps = zip(*seconds)
        self._recent.append(max(copies))
        if max(steps) > 0:
            self.every = max(1, math.ceil(min(self._recent) / (SHARE * max(steps))))
