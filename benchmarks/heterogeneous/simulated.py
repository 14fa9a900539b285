"""DRPM on processors of which only the times are simulated.

Measurements, decisions and partitions are those of `heterogeneous.checks`; the time of
an iteration is the work over the ability, with noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np

from heterogeneous import RectangularPartition, rectangular_partition
from heterogeneous.checks import Measurements, Outcome, outcome

#: Inputs, hidden units, outputs, samples: the paper's.
SHAPE = (203, 80, 26, 1024)
#: Least time of a processor's messages within a column, as a part of its computation.
MESSAGES = 0.02

#: The abilities of all processors in an iteration, counted from 0.
Abilities = Callable[[int], np.ndarray]


class Settings(NamedTuple):
    """The parameters of DRPM, and of disturbances.

    Attributes:
        every: Iterations between two checks, R.
        last: Measurements that count, L; see `heterogeneous.checks.Measurements`.
        whole: Threshold below which everything is mapped again.
        line: Threshold below which lines move.
        filter: Whether only measurements count that resemble the newest ones.
        waits: Whether times include waits within a column.
        noise: Standard deviation of a time, relative.
    """

    every: int = 20
    last: int | None = None
    whole: float = 0.4
    line: float = 0.8
    filter: bool = True
    waits: bool = False
    noise: float = 0.1


#: The method as the paper prints it.
PRINTED = Settings(filter=False, waits=True)


class Checked(NamedTuple):
    """A check.

    Attributes:
        action: Rectangles that moved.
        slowest: The slowest processor's time over that of a perfect balance, after it.
        seconds: Seconds of the iterations since the last check, in units of a perfect
            balance.
        outcome: Everything that the check decided.
    """

    action: str | None
    slowest: float
    seconds: float
    outcome: Outcome


def run(
    abilities: Abilities,
    initial: Sequence[float] | None,
    n_checks: int,
    settings: Settings,
    random: np.random.RandomState,
    spikes: Sequence[tuple[int, int, float]] = (),
    shape: tuple[int, int, int, int] = SHAPE,
) -> list[Checked]:
    """Simulates a run.

    Args:
        abilities: True abilities.
        initial: Abilities that are given at the start; ``None`` for no estimate.
        n_checks: Number of checks.
        settings: Settings of DRPM.
        random: Source of the noise.
        spikes: Iterations that took a multiple of their time: iteration, processor,
            factor.
        shape: n, m, l and s.
    """
    n = len(abilities(0))
    partition = rectangular_partition([1] * n if initial is None else initial, *shape)
    _, m, _, s = shape
    measurements = [Measurements(settings.last, settings.filter) for _ in range(n)]
    longer = {(i, p): times for i, p, times in spikes}
    found = []
    for check in range(1, n_checks + 1):
        work = np.array([r.work for r in partition.rectangles], np.float64)
        messages = _messages(partition)
        seconds = 0.0
        for i in range((check - 1) * settings.every, check * settings.every):
            now = abilities(i)
            factors = 1 + settings.noise * random.standard_normal((2, n))
            # Forward and backward are about the same work.
            forward, backward = work / now / 2 * np.maximum(factors, 0.1)
            times = np.array([longer.get((i, p), 1.0) for p in range(n)])
            t1 = times * (forward + messages / now + backward)
            if settings.waits:
                t1 += _waits(partition, times * forward)
            for p in range(n):
                measurements[p].add(work[p], t1[p], times[p] * backward[p])
            seconds += (forward + backward + messages / now).max() / _ideal(m * s, now)
        decided = outcome(
            partition,
            [each.summary() for each in measurements],
            check=check,
            has_initial=initial is not None,
            whole=settings.whole,
            line=settings.line,
        )
        partition = decided.partition
        now = abilities(check * settings.every)
        after = np.array([r.work for r in partition.rectangles]) / now
        slowest = after.max() / _ideal(m * s, now)
        found.append(Checked(decided.action, slowest, seconds, decided))
    return found


def _ideal(work: float, abilities: np.ndarray) -> float:
    """Returns the time of a perfect balance."""
    return work / abilities.sum()


def _messages(partition: RectangularPartition) -> np.ndarray:
    """Returns the messages of each processor as work, by the sizes of their columns."""
    found = np.zeros(partition.n_processors)
    for column, width in zip(partition.columns, partition.widths):
        size = len(column) - 1
        found[list(column)] = MESSAGES * partition.m * partition.s * width * size
    return found / partition.n_processors


def _waits(partition: RectangularPartition, forward: np.ndarray) -> np.ndarray:
    """Returns how long each processor waits for the latest forward of its column."""
    found = np.zeros(partition.n_processors)
    for column in map(list, partition.columns):
        found[column] = forward[column].max() - forward[column]
    return found


def settles(checks: Sequence[Checked], since: int, within: int = 3) -> bool:
    """Returns whether nothing moves any more, some checks after something changed.

    Args:
        checks: Checks of a run, or its first ones.
        since: Number of checks before the change.
        within: Number of checks that may move something.
    """
    return all(check.action is None for check in checks[since + within :])


def random_case(
    random: np.random.RandomState, n: int
) -> tuple[np.ndarray, list[float]]:
    """Returns abilities, and wrong beliefs about them: off by up to 1.5."""
    true = random.uniform(0.25, 1.0, n)
    believed = true * 1.5 ** random.uniform(-1, 1, n)
    return true, believed.tolist()


def step(
    before: np.ndarray, processor: int, factor: float, iteration: int
) -> Abilities:
    """Returns abilities of which one changes at an iteration."""
    after = before.copy()
    after[processor] *= factor
    return lambda i: before if i < iteration else after


def drift(before: np.ndarray, after: np.ndarray, begin: int, end: int) -> Abilities:
    """Returns abilities that change little by little between two iterations."""

    def at(i: int) -> np.ndarray:
        part = min(max((i - begin) / (end - begin), 0.0), 1.0)
        return (1 - part) * before + part * after

    return at
