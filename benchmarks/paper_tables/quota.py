"""How long phases take on a host that has a part of a core."""

from __future__ import annotations

import numpy as np

#: Seconds between two ticks of the system's clock.
TICK = 0.004
#: Seconds after which a host gets its share of them again, and the least that it gets;
#: if that is more than its share, it gets it later.
PERIOD, QUOTA = 0.01, 0.001
#: Ticks' worth of core seconds of which each stop is looked at. Of what is longer the
#: rest takes as long as the share says.
LOOKED_AT = 20


class Quota:
    """A host that may use a share of a core, as Linux keeps it to that.

    It runs with the whole core until the system sees, at a tick of its clock, that the
    host is in debt: that it has used more than its share of the time. Then it stops
    until it is not. So a phase that begins after a pause, without debts, runs for up to
    a tick as if there were no quota. That saves it up to 40 ms with a tenth of a core,
    and all stops if it is short; phases right behind each other have all of them.

    Args:
        share: Of a core, above 0 and at most 1.
        random: Where ticks fall.
    """

    def __init__(self, share: float, random: np.random.RandomState) -> None:
        self._share = share
        self._random = random
        # Core seconds.
        self._debt = 0.0
        # It gets so much for a period, and has spent some of it on the debt before.
        self._grace = max(share * PERIOD, QUOTA) / 2

    def rest(self, seconds: float) -> None:
        """Has nothing to do for some time."""
        self._debt = max(0.0, self._debt - seconds * self._share)

    def run(self, core_seconds: float) -> float:
        """Returns the seconds that something takes which needs a core for so long."""
        left = min(core_seconds, LOOKED_AT * TICK)
        seconds = (core_seconds - left) / self._share
        tick = self._random.uniform(0.0, TICK)
        while left > tick:
            left -= tick
            seconds += tick
            self._debt += tick * (1.0 - self._share)
            tick = TICK
            if self._debt > self._grace:
                seconds += self._debt / self._share
                self._debt = 0.0
                tick = self._random.uniform(0.0, TICK)
        self._debt += left * (1.0 - self._share)
        return seconds + left


def repeated(
    share: float, phases: list[float], pause: float = 0.0, times: int = 100
) -> tuple[float, float]:
    """Runs phases in turn on one host.

    Args:
        share: Of a core that the host has.
        phases: Their core seconds.
        pause: Seconds that the host rests between two of them.
        times: How often it runs each.

    Returns:
        The seconds of a phase on average, and the standard deviation of one phase's as
        a part of their mean: the mean of all.
    """
    quota = Quota(share, np.random.RandomState(0))
    found = np.empty((times, len(phases)))
    for turn in found:
        for i, phase in enumerate(phases):
            quota.rest(pause)
            turn[i] = quota.run(phase)
    return float(found.mean()), float((found.std(axis=0) / found.mean(axis=0)).mean())
