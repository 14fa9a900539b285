"""The pace of a run: minibatches a second, and the time left."""

from __future__ import annotations

import time
from collections import deque

# Seconds that the minibatches per second are a mean over.
_SECONDS = 10.0


class Pace:
    """Numbers of minibatches and samples so far, with their times.

    Example:
        >>> pace = Pace()
        >>> pace.rates(n_steps=0, n_samples=0, now=100.0)
        >>> pace.rates(n_steps=8, n_samples=512, now=104.0)
        (2.0, 128.0)
        >>> pace.seconds_left(0.25, now=104.0), pace.seconds_left(0.5, now=114.0)
        (None, 20.0)
    """

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int, int]] = deque()
        self._begin: tuple[float, float] | None = None

    def rates(
        self, n_steps: int, n_samples: int, now: float | None = None
    ) -> tuple[float, float] | None:
        """Returns the minibatches and samples a second, lately.

        Args:
            n_steps (int): Number of minibatches so far.
            n_samples (int): Number of samples so far.
            now (float or None): Seconds of any clock, by default of this host's.

        Returns:
            tuple: The two rates; ``None`` if there was no minibatch lately.
        """
        now = time.perf_counter() if now is None else now
        counts = self._counts
        counts.append((now, n_steps, n_samples))
        while len(counts) > 2 and now - counts[1][0] > _SECONDS:
            counts.popleft()
        then, steps_then, samples_then = counts[0]
        if n_steps <= steps_then or now <= then:
            return None
        seconds = now - then
        return (n_steps - steps_then) / seconds, (n_samples - samples_then) / seconds

    def seconds_left(
        self, share: float | None, now: float | None = None
    ) -> float | None:
        """Returns the seconds until the end, at the mean speed since the first call.

        Args:
            share (float or None): Share of the training that is done, if known.
            now (float or None): Seconds of any clock, by default of this host's.
        """
        if share is None:
            return None
        now = time.perf_counter() if now is None else now
        if self._begin is None:
            self._begin = share, now
        first, then = self._begin
        if share <= first:
            return None
        return max(0.0, 1.0 - share) * (now - then) / (share - first)
