"""Waits for a thread of this process, which end if it has ended or is too slow."""

from __future__ import annotations

import threading
import time
from typing import Callable

# Seconds of a wait between two checks that the thread is alive.
_SECONDS_BETWEEN_LOOKS = 1.0


def wait_for(
    done: Callable[[float], bool],
    thread: threading.Thread,
    seconds: float,
    what: str,
    ended: str,
) -> None:
    """Waits until a thread has done something.

    Args:
        done: Function that waits as many seconds as it is given, and returns whether it
            is done, such as ``Event.wait``.
        thread: The thread.
        seconds: Longest wait.
        what: Name of the thing, such as ``'the disk of /data'``.
        ended: Text of the error if the thread has ended.

    Raises:
        TimeoutError: If it takes longer.
        RuntimeError: If the thread has ended without doing it.
    """
    end = time.monotonic() + seconds
    while not done(_SECONDS_BETWEEN_LOOKS):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        if not thread.is_alive() and not done(0.0):
            raise RuntimeError(ended)
