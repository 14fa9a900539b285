"""Starts the ranks of a run, and starts them again when one is lost.

::

    start --> ranks train --> ended, because
      ^                         finished, or a signal stopped it ---> the exit code
      |                         a rank was lost                 -.
      |                         an error of the program         -+--> budget spent, or
      '----------- pause <---------------------------------------'    the same error
                                                                      twice: the code
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from divisible.communication import flight_files
from divisible.communication.flight_record import Log
from divisible.side_files import SideFiles, append_line
from pipeline.supervision.budget import Budget
from pipeline.supervision.endings import Ending, Kind, ending
from pipeline.supervision.ranks import Signals

# Added to the number of a signal, for the exit code of a process that it ends.
_SIGNALS = 128


@dataclass
class Supervisor:
    """Runs a command until it ends for good.

    Args:
        command: Launcher with its arguments, the script and its arguments.
        n_ranks: Number of ranks, for the texts.
        budget: Number of restarts.
        log: File for a line of JSON about each start and end; ``None`` for none.
    """

    command: Sequence[str]
    n_ranks: int
    budget: Budget
    log: Path | None = None

    def run(self) -> int:
        """Starts the ranks as often as it takes, and returns the exit code.

        The exit code is that of the last launcher; 128 and the number of the signal if
        a signal has ended it.

        Raises:
            OSError: If the launcher cannot be started.
        """
        signals, last = Signals(), None
        self._files = SideFiles("the log of the supervisor", "Give another --log.")
        with signals.passed_on():
            while True:
                self._note("start", ranks=self.n_ranks)
                code, found = self._start(signals)
                code = code if code >= 0 else _SIGNALS - code
                self._note("end", kind=found.kind.value, reason=found.reason, code=code)
                is_over = signals.got is not None
                if is_over or found.kind in (Kind.FINISHED, Kind.STOPPED):
                    return code
                budget = self.budget.after(found.n_steps, found.n_saved)
                why_not = _why_not(found, last, budget)
                if why_not:
                    self._say(f"{found.reason}. {why_not}")
                    return code
                self.budget, last = budget, found
                self._say(
                    f"{found.reason}, after {found.n_steps} calls of the pipeline."
                    f" Starts {self.n_ranks} ranks again; {budget.left} more restarts"
                )
                _pause(budget.pause, signals)
                if signals.got is not None:
                    return _SIGNALS + signals.got

    def _start(self, signals: Signals) -> tuple[int, Ending]:
        """Starts the ranks once; returns the exit code, and why they ended."""
        folder, variables, is_kept = self._folder(), dict(os.environ), False
        if folder is not None:
            variables[flight_files.VARIABLE] = str(folder)
        try:
            code = signals.run(self.command, variables)
            logs = _logs(folder)
            found = ending(code, logs)
            # The ranks have printed where their records are.
            is_kept = bool(logs) and found.kind in (Kind.LOST, Kind.ERROR)
            return code, found
        finally:
            if folder is not None and not is_kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self) -> Path | None:
        """Makes a directory for the flight records of a start, if there can be one."""
        try:
            root = Path(os.path.abspath(flight_files.root_directory()))
            root.mkdir(parents=True, exist_ok=True)
            if not os.environ.get(flight_files.VARIABLE):
                flight_files.tidy(root)
            return Path(tempfile.mkdtemp(prefix="supervised-", dir=root))
        except OSError as error:
            self._say(f"the ranks leave no flight records, so less is known: {error}")
            return None

    def _say(self, text: str) -> None:
        print(f"divisible run: {text}", file=sys.stderr, flush=True)

    def _note(self, event: str, **facts: object) -> None:
        if self.log is None:
            return
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts})
        with self._files.writing(self.log):
            append_line(self.log, line)


def _why_not(found: Ending, last: Ending | None, budget: Budget) -> str:
    """Returns the reason against a restart, as a sentence; empty if there is none."""
    is_same = last is not None and (found.error, found.n_steps) == last[2:4]
    if is_same and found.error and found.n_saved < budget.steps_to_recover:
        return "The same error came at the same step twice, so it is the program's"
    if budget.is_spent:
        return (
            f"All {budget.most} restarts are spent; {budget.steps_to_recover} steps"
            f" in a snapshot would give one back"
        )
    return ""


def _logs(folder: Path | None) -> list[Log]:
    """Returns the flight records of a start; those that cannot be read are left out."""
    found = []
    # The system may have removed old files meanwhile.
    with contextlib.suppress(OSError):
        jobs = (
            [] if folder is None else [job for job in folder.iterdir() if job.is_dir()]
        )
        for path in [path for job in jobs for path in flight_files.files(job)]:
            with contextlib.suppress(OSError, ValueError):
                found.append(flight_files.read_file(path))
    return found


def _pause(seconds: float, signals: Signals) -> None:
    """Waits, unless a signal comes."""
    end = time.monotonic() + seconds
    while signals.got is None and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
