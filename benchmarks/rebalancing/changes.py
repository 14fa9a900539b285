"""When a host becomes slow in a run, and who makes it so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster

#: Checks after a change until all should have settled.
SETTLED = 3
#: Number of minibatches between two changes, in checks.
PHASE = 8
#: Seconds between two polls for a file, and seconds that a run may take.
PAUSE, DEADLINE = 0.05, 3600.0
SLOW_HOST = 2


def n_iterations(every: int) -> tuple[int, int, int]:
    """Returns when the host becomes slow, when it recovers, and the end.

    Example:
        >>> n_iterations(10)
        (40, 120, 200)
    """
    slow = PHASE // 2 * every
    return slow, slow + PHASE * every, slow + 2 * PHASE * every


def watcher(folder: Path, share: float) -> Callable[[Cluster], None]:
    """Returns a function that changes the share of a host when a run asks for it.

    Args:
        folder: Folder in which the first rank makes files ``slow0``, ``fast0`` and so
            on.
        share: Smaller share of the host, in cores.
    """

    def watch(cluster: Cluster) -> None:
        i, end = 0, time.monotonic() + DEADLINE
        while time.monotonic() < end and folder.exists():
            name = f"{'fast' if i % 2 else 'slow'}{i // 2}"
            if (folder / name).exists():
                cluster.set(SLOW_HOST, cpus=share if i % 2 else share / 2)
                i += 1
            time.sleep(PAUSE)

    return watch


class Course:
    """A trainer's extension that records times and losses, and asks for the changes.

    Args:
        folder: Folder that the watcher polls.
        number: Number of the run.
        every: Minibatches between two checks.
        is_chief: Whether this rank asks for changes.
    """

    trigger = 1, "iteration"
    priority = 2000
    name = "course"

    def __init__(self, folder: Path, number: int, every: int, is_chief: bool) -> None:
        self._folder, self._number, self._every = folder, number, every
        self._is_chief = is_chief
        self.times, self.losses = [time.perf_counter()], []

    def __call__(self, trainer: Any) -> None:
        """Notes a minibatch."""
        slow, fast, _ = n_iterations(self._every)
        self.times.append(time.perf_counter())
        self.losses.append(float(trainer.observation["main/loss"]))
        for name, iteration in (("slow", slow), ("fast", fast)):
            if self._is_chief and trainer.updater.iteration == iteration:
                (self._folder / f"{name}{self._number}").touch()

    @property
    def seconds_before(self) -> float:
        """Seconds of a step before the host becomes slow, after the first checks."""
        slow, _, _ = n_iterations(self._every)
        return self._mean(slow // 2, slow)

    @property
    def seconds_settled(self) -> float:
        """Seconds of a step on the slow host, from the third check after the change."""
        slow, fast, _ = n_iterations(self._every)
        return self._mean(slow + SETTLED * self._every, fast)

    def _mean(self, first: int, last: int) -> float:
        return (self.times[last] - self.times[first]) / (last - first)
