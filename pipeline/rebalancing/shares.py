"""The part of a minibatch that each replica should have, from measured times."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

#: Shares stay unless one would change by more than this part of itself.
_LEAST_CHANGE = 0.05
#: Number of checks that the cost of a minibatch of any size is estimated from.
_CHECKS_KEPT = 4
_LEAST_SAMPLES = 1.0


class MeasuredShares:
    """Shares with which all replicas compute for the same time.

    A replica takes ``(fixed + samples) / speed`` seconds: layers have a cost of their
    own, and products of few rows are slow per row. Without ``fixed``, a slow replica
    would seem slower with each part that it loses, until it had nothing left. Since
    ``fixed`` can be estimated only when shares have changed, the first change goes half
    way::

        seconds  |          . with its old share
                 |      . with its new share
                 |  /
                 +--+---------------- samples
               -fixed

    Example:
        >>> shares = MeasuredShares()
        >>> seconds = lambda samples: [(8 + samples[0]) / 3, (8 + samples[1]) / 1]
        >>> samples = [50, 50]
        >>> for _ in range(3):
        ...     found = shares.wanted(samples, seconds(samples))
        ...     if found is not None:
        ...         samples = [100 * share for share in found]
        >>> [round(each) for each in samples], [round(t) for t in seconds(samples)]
        ([79, 21], [29, 29])
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_CHECKS_KEPT)

    def wanted(
        self, samples: Sequence[float], seconds: Sequence[float]
    ) -> list[float] | None:
        """Returns shares of the sum 1; ``None`` if the present shares can stay.

        Args:
            samples: Number of samples of a minibatch that each replica has.
            seconds: Seconds that the busiest rank of each replica computes for them.
        """
        n, t = np.asarray(samples, np.float64), np.asarray(seconds, np.float64)
        self._seen.append((n, t))
        fixed = fixed_cost(*map(np.array, zip(*self._seen)))
        found = balanced(n, t, fixed or 0.0)
        if np.abs(found / n - 1).max() < _LEAST_CHANGE:
            return None
        if fixed is None:
            found = np.sqrt(found * n)
        return (found / found.sum()).tolist()


def fixed_cost(samples: np.ndarray, seconds: np.ndarray) -> float | None:
    """Returns the cost of a minibatch of any size, as a number of samples.

    Args:
        samples: Number of samples of each replica, of the shape (n_checks, n_replicas).
        seconds: Seconds that replicas took for them, of the same shape.

    Returns:
        At most the samples of the largest part; ``None`` if no share has changed.

    Example:
        >>> samples = np.array([[50, 50], [70, 30]])
        >>> round(fixed_cost(samples, (8 + samples) / [3, 1]))
        8
        >>> fixed_cost(samples[:1], samples[:1] / [3, 1]) is None
        True
    """
    if (np.ptp(samples, axis=0) < _LEAST_CHANGE * samples.mean(axis=0)).all():
        return None
    candidates = np.linspace(0, samples.max(), 201)
    speeds = np.log(candidates[:, np.newaxis, np.newaxis] + samples) - np.log(seconds)
    # With the true fixed cost, each replica has the same speed at all checks.
    return float(candidates[speeds.var(axis=1).sum(axis=1).argmin()])


def balanced(samples: np.ndarray, seconds: np.ndarray, fixed: float) -> np.ndarray:
    """Returns the samples that replicas can have in equal time, with the same sum.

    Args:
        samples: Number of samples that each replica has now.
        seconds: Seconds that each replica takes for them.
        fixed: Cost of a minibatch of any size, as a number of samples.

    Example:
        >>> balanced(np.array([50.0, 50.0]), np.array([1.0, 3.0]), fixed=0).round()
        array([75., 25.])
    """
    speeds = (fixed + samples) / seconds
    found = np.full(samples.shape, _LEAST_SAMPLES)
    counted = np.ones(samples.shape, bool)
    while True:
        left = samples.sum() - found[~counted].sum()
        together = (left + counted.sum() * fixed) / speeds[counted].sum()
        parts = together * speeds[counted] - fixed
        if (parts >= _LEAST_SAMPLES).all() or counted.sum() == 1:
            found[counted] = parts
            return found
        # If this time is less than the fixed cost of a replica, it gets the fewest
        # samples.
        counted[np.flatnonzero(counted)[parts.argmin()]] = False
