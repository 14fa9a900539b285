"""Runs a training script so that all ranks end when one does.

    mpiexec -n 4 python -m pipeline train.py --epoch 20

Arguments after the script's name are the script's own. On every rank it is run as
``python train.py`` would run it, and besides:

* An exception that nobody catches ends all ranks; its traceback is printed once.
* So does ``sys.exit`` with another code than 0, with that code.
* After :class:`~pipeline.StopOnSignal` has stopped the training, the exit code is 75,
  also if the script ends with ``sys.exit()`` or ``sys.exit(0)``.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from types import TracebackType

from mpi4py import MPI

from divisible.communication.aborting import (
    abort_on_error,
    end_all_ranks,
    is_world_up,
    let_lower_ranks_speak,
)
from divisible.communication.errors import StallError
from divisible.communication.waiting import wait
from pipeline.training.signals import STOPPED, has_stopped

# How long a rank that was stopped by a signal waits for the others before it ends.
_SECONDS_FOR_OTHERS = 60.0


def main(arguments: list[str]) -> None:
    """Runs a script.

    Args:
        arguments: The script and its own arguments.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if arguments else 2)
    script = arguments[0]
    if not os.path.exists(script):
        sys.exit(f"there is no script {script}")
    abort_on_error()
    sys.argv = arguments
    # As if Python itself had been given the script.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit:
        if exit.code not in (None, 0):
            _end_others(exit)
            raise
    except BaseException as error:
        error.with_traceback(_within(script, error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    if has_stopped():
        _wait_for_others()
        sys.exit(STOPPED)


def _wait_for_others() -> None:
    """Waits until the script has ended on all ranks.

    Some launchers end the others when one exits with another code than 0. This is a
    courtesy to those: a rank that never comes must not keep this one.
    """
    if is_world_up():
        request = MPI.COMM_WORLD.Ibarrier()
        with contextlib.suppress(StallError):
            wait(request.Test, _SECONDS_FOR_OTHERS, lambda: "all ranks to end")


def _end_others(exit: SystemExit) -> None:
    """Ends the other ranks of a script that did not end well."""
    if not is_world_up():
        return
    # As Python does: other than a number, it is the message.
    is_number = isinstance(exit.code, int)
    message = "" if is_number else f"{exit.code}\n"
    code = exit.code if is_number else 1
    let_lower_ranks_speak()
    end_all_ranks(f"exits with {code}", lambda: sys.stderr.write(message), code)


def _within(script: str, trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback from the script on."""
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename != script:
        start = start.tb_next
    return start or trace


if __name__ == "__main__":
    main(sys.argv[1:])
