"""Which part of a minibatch each replica should have, by how long it takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

#: Shares of replicas stay unless one is to change by this part of itself.
_LEAST_CHANGE = 0.05
#: The checks that say what a minibatch costs whatever its size.
_CHECKS_KEPT = 4
_LEAST_SAMPLES = 1.0


class MeasuredShares:
    """The shares with which all replicas would be busy for the same time.

    A replica takes ``(fixed + samples) / speed``: layers have a cost of their own, and
    products of few rows are slow for each of them. Without ``fixed`` a slow replica
    would look slower with each part that is taken from it, until it had nothing left.
    What it is shows when shares have changed; the first change goes half way::

        seconds  |          . with its old share
                 |      . with its new one
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
        """Returns shares of the sum 1; ``None`` if those of now do.

        Args:
            samples: That each replica has of a minibatch.
            seconds: That its busiest rank computes for them.
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
    """Returns what a minibatch costs whatever its size, in samples.

    Args:
        samples: Of shape (n_checks, n_replicas).
        seconds: That replicas took for them, of the same shape.

    Returns:
        At most the samples of the largest part; ``None`` where no share has changed.

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
    # With the true one, the speed of each replica is the same at all checks.
    return float(candidates[speeds.var(axis=1).sum(axis=1).argmin()])


def balanced(samples: np.ndarray, seconds: np.ndarray, fixed: float) -> np.ndarray:
    """Returns how many samples replicas can have in the same time, of the same sum.

    Args:
        samples: That replicas have now.
        seconds: That they take.
        fixed: The cost of a minibatch of any size, in samples.

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
        # A replica that cannot even pay the fixed cost in this time keeps the least.
        counted[np.flatnonzero(counted)[parts.argmin()]] = False
