"""The number of rows of a segment, chosen by the first minibatches: ``segment='auto'``.

::

    minibatch 1          makes the files of the gradient and the optimizer's state
    minibatches 2 to 5   are timed, each with another candidate
    from then on         the candidate with the least time for a sample

All passes through the segments are timed: forward, backward, update. The size of a
segment decides the order in which the gradient of the input is summed. So a snapshot
has the choice, for a resumed run to use the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class SegmentTrial:
    """The number of rows of a segment, and the search for the best number.

    Args:
        candidates: Numbers of rows, the first to be used first. A single one is chosen.

    Attributes:
        seconds (dict): Seconds for a sample, by candidate.

    Raises:
        ValueError: If there is no candidate.

    Example:
        >>> trial = SegmentTrial([200, 100])
        >>> for _ in range(3):
        ...     trial.count(32)
        ...     with trial.timing():
        ...         pass  # a pass through the segments
        ...     trial.end_minibatch()
        >>> sorted(trial.seconds), trial.is_chosen
        ([100, 200], True)
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        if not candidates:
            raise ValueError("no number of rows to choose from")
        self._candidates = tuple(candidates)
        self._rows = self._candidates[0]
        self.is_chosen = len(self._candidates) == 1
        self.seconds: dict[int, float] = {}
        self._is_warm = False
        self._taken, self._n_samples = 0.0, 0

    @property
    def most(self) -> int:
        """The largest number of rows that a segment may have."""
        return max(self._candidates)

    @property
    def rows(self) -> int:
        """The number of rows of a segment until the end of this minibatch."""
        return self._rows

    def count(self, n_samples: int) -> None:
        """Counts samples of a forward that is followed by a backward."""
        self._n_samples += n_samples

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Adds the time of the block to that of this minibatch."""
        begun = time.perf_counter()
        yield
        self._taken += time.perf_counter() - begun

    def end_minibatch(self) -> None:
        """Changes to the next candidate, or chooses; to be called after an update."""
        taken, n_samples = self._taken, self._n_samples
        self._taken, self._n_samples = 0.0, 0
        if self.is_chosen or not n_samples:
            return
        if self._is_warm:
            self.seconds[self._rows] = taken / n_samples
        self._is_warm = True
        waiting = [each for each in self._candidates if each not in self.seconds]
        if waiting:
            self._rows = waiting[0]
        else:
            self.choose(min(self.seconds, key=self.seconds.__getitem__))

    def choose(self, rows: int) -> None:
        """Ends the trial with a given number, such as the choice of another run."""
        self._rows, self.is_chosen = rows, True
