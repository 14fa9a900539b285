"""Counters of the operating system for a thread and its process.

::

    seconds of a step   |computes on a processor|waits for a processor|sleeps, or reads|
    schedstat             on_cpu                  queued
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple


class Counters(NamedTuple):
    """Sums since the process began.

    Attributes:
        on_cpu (float): Seconds of the thread on a processor.
        queued (float): Seconds in which the thread could have run, and another thread
            had the processor.
        stored (float): Bytes that the process has read from disks and written to them.
    """

    on_cpu: float
    queued: float
    stored: float

    def since(self, before: Counters) -> Counters:
        """Returns the differences to earlier sums."""
        return Counters(*(now - then for now, then in zip(self, before)))


class ProcessCounters:
    """Reads the counters of the calling thread, and of its process.

    Systems other than Linux count nothing here. All sums are 0 there.

    Example:
        >>> counters = ProcessCounters()
        >>> before = counters.read()
        >>> counters.read().since(before).on_cpu >= 0
        True
    """

    def __init__(self) -> None:
        # /proc/self would be the main thread's.
        self._schedule = _opened(f"/proc/self/task/{threading.get_native_id()}")
        self._traffic = _opened("/proc/self", "io")

    def read(self) -> Counters:
        """Returns the sums so far."""
        on_cpu, queued, *_ = (*_numbers(self._schedule), 0, 0)
        # The last three lines: read_bytes, write_bytes, cancelled_write_bytes.
        stored = sum(_numbers(self._traffic)[4:6])
        return Counters(on_cpu / 1e9, queued / 1e9, float(stored))

    def close(self) -> None:
        """Closes the files of the operating system."""
        for descriptor in (self._schedule, self._traffic):
            if descriptor is not None:
                os.close(descriptor)
        self._schedule = self._traffic = None


def _opened(folder: str, name: str = "schedstat") -> int | None:
    try:
        return os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _numbers(descriptor: int | None) -> list[int]:
    """Returns the numbers in a small file of the operating system."""
    if descriptor is None:
        return []
    try:
        return [
            int(word) for word in os.pread(descriptor, 512, 0).split() if word.isdigit()
        ]
    except OSError:
        return []
