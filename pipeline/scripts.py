"""Runs a training script so that all ranks end when one does.

    mpiexec -n 4 divisible run train.py --epoch 20

Arguments after the script's name belong to the script. On every rank it runs as with
``python train.py``, with these differences:

* An uncaught exception in any thread ends all ranks, and its traceback is printed once.
* ``sys.exit`` with a code other than 0 ends all ranks with that code.
* After :class:`~pipeline.StopOnSignal` or ``divisible control`` has stopped the
  training, the exit code is 75, even if the script ends with ``sys.exit()`` or
  ``sys.exit(0)``.
* SIGUSR1 ends all ranks, as it ends any program, unless the script has a handler. MPICH
  would ignore it.
* A file beside the script with the name of one of our packages does not hide the
  package.
* The console command reports a rank that is killed, with its memory
  (:mod:`divisible.communication.guard`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from mpi4py import MPI

from chainer_compat import _packages
from divisible.communication.aborting import (
    abort_on_error,
    end_all_ranks,
    is_world_up,
    let_lower_ranks_speak,
)
from divisible.communication.errors import StallError
from divisible.communication.waiting import wait
from pipeline.training.signals import STOPPED, has_stopped, stopped_by

# Longest wait of a rank that a signal stopped for the others, in seconds.
_SECONDS_FOR_OTHERS = 60.0


def run_script(
    arguments: Sequence[str], runs: Callable[[Callable[[], Any]], None] | None = None
) -> None:
    """Runs a script.

    Args:
        arguments: Path of the script, and the script's own arguments.
        runs: Function that gets a function, which runs the script, and calls it as
            often as it likes; once by default.
    """
    abort_on_error()
    script = arguments[0]
    try:
        _prepare(arguments)
        run = functools.partial(runpy.run_path, script, run_name="__main__")
        run() if runs is None else runs(run)
    except SystemExit as exit:
        if exit.code not in (None, 0):
            _end_others(exit)
            raise
    except BaseException as error:
        _fail(script, error)
    if has_stopped():
        _wait_for_others()
        if not is_world_up() or MPI.COMM_WORLD.rank == 0:
            print(
                f"exit code {STOPPED}: {stopped_by()} stopped the training", flush=True
            )
        sys.exit(STOPPED)


def _prepare(arguments: Sequence[str]) -> None:
    script = arguments[0]
    if not os.path.exists(script):
        why = f"there is no script {script}"
        if script.startswith("-"):
            why += (
                ". Options stand before 'divisible', if they are the launcher's, or"
                " after the script: mpiexec -n 4 divisible run train.py --epoch 20"
            )
        sys.exit(why)
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        # Python does not know of MPICH's handler, so the default must be set.
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    for package in _packages.NAMES:
        importlib.import_module(package)
    sys.argv = list(arguments)
    # The first entry is the script's directory, as with "python SCRIPT".
    sys.path[0] = os.path.dirname(os.path.abspath(script))


def _fail(script: str, error: BaseException) -> None:
    """Prints an exception of the script, and ends all ranks."""
    # The script may have set a hook of its own, which ends only this rank.
    abort_on_error()
    error.with_traceback(_within(script, error.__traceback__))
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


def _wait_for_others() -> None:
    """Waits until the script has ended on all ranks.

    Some launchers end the other ranks when one exits with a code other than 0. So ranks
    wait for each other, but not for ever.
    """
    if is_world_up():
        request = MPI.COMM_WORLD.Ibarrier()
        with contextlib.suppress(StallError):
            wait(request.Test, _SECONDS_FOR_OTHERS, lambda: "all ranks to end")


def _end_others(exit: SystemExit) -> None:
    """Ends the other ranks of a script that did not end well."""
    if not is_world_up():
        return
    # Python prints an exit code that is not a number as a message.
    is_number = isinstance(exit.code, int)
    message = "" if is_number else f"{exit.code}\n"
    code = exit.code if is_number else 1
    let_lower_ranks_speak()
    end_all_ranks(
        f"exits with {code}", lambda: sys.stderr.write(message), code, has_records=False
    )


def _within(script: str, trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that begins in the script."""
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename != script:
        start = start.tb_next
    return start or trace
