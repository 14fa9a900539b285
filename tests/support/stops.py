"""Stops of trainings, which a process remembers."""

import sys


def forget_stops() -> None:
    """Resets `pipeline.training.signals.has_stopped` to False.

    A script that ends after a stop has an exit code of its own, so a stop of an earlier
    test in the same process must not count.
    """
    # Most tests have not loaded the module, and its import starts MPI.
    signals = sys.modules.get("pipeline.training.signals")
    if signals is not None:
        signals._has_stopped = False
