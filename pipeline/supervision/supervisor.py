"""Starts the ranks of a run, and starts them again when one is lost.

::

    start --> ranks train --> ended, because
      ^                         finished, or it was stopped ---------> the exit code
      |                         a rank was lost                 -.
      |                         an error of the program         -+--> budget spent, or
      |<--------- pause <----------------------------------------'    the same error
      |                                                               twice: the code
      '---- hosts are back: the ranks were stopped, to be more
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Protocol

from divisible.communication import flight_files
from divisible.planning.units import count
from divisible.side_files import SideFiles, append_line
from pipeline.supervision import records
from pipeline.supervision.budget import Budget
from pipeline.supervision.endings import Ending, Kind, ending
from pipeline.supervision.fleet import Fleet
from pipeline.supervision.growth import Growth
from pipeline.supervision.launching import Placement
from pipeline.supervision.orders import Orders
from pipeline.supervision.ranks import Signals
from pipeline.training.signals import STOPPED

# Added to the number of a signal, for the exit code of a process that it ends.
_SIGNALS = 128
# Seconds between two looks at the records of ranks that run, and for a launcher to end
# after a rank has.
_SECONDS_BETWEEN_LOOKS, _SECONDS_TO_END = 5.0, 30.0


class Startable(Protocol):
    """A launcher and its program; see :class:`~pipeline.supervision.launching.Job`."""

    def command(self, placement: Placement) -> list[str]:
        """Returns the command that starts the ranks on certain hosts."""


@dataclass
class Supervisor:
    """Runs a command until it ends for good.

    Args:
        job: Launcher and program.
        fleet: Hosts of the run.
        budget: Number of restarts.
        log: File for a line of JSON about each start and end; ``None`` for none.
        orders: Orders to the run; ``None`` if nobody can give any.
        grows: Whether to look for hosts that are back, and on SIGUSR2.
    """

    job: Startable
    fleet: Fleet
    budget: Budget
    log: Path | None = None
    orders: Orders | None = None
    grows: bool = False

    def run(self) -> int:
        """Starts the ranks as often as it takes, and returns the exit code.

        The exit code is that of the last launcher; 128 and the number of the signal if
        a signal has ended it.

        Raises:
            OSError: If the launcher cannot be started.
        """
        self._growth = Growth(self.fleet, self.orders, self.grows)
        own = {signal.SIGUSR2: self._growth.ask} if self.grows else {}
        self._signals, self._last = Signals(own), ""
        self._files = SideFiles("the log of the supervisor", "Give another --log.")
        with self._signals.passed_on():
            return self._run()

    def _run(self) -> int:
        # The last end by an error or a loss, and the number of steps before this start
        # that a snapshot has.
        last, n_before = None, 0
        placement = self.fleet.place()
        while True:
            code, found = self._start(placement)
            is_growth = found.kind is Kind.STOPPED and self._growth.is_under_way
            is_done = found.kind in (Kind.FINISHED, Kind.STOPPED) and not is_growth
            if is_done or self._is_stopped():
                self._note_end(code, found)
                return code
            self.fleet.look()
            found = self._seen_from_hosts(found, placement)
            if is_growth:
                last, n_before = None, 0
                begin = "hosts are back"
            else:
                budget = self.budget.after(found.n_steps, found.n_saved)
                why_not = _why_not(found, last, n_before, budget)
                if why_not:
                    self._note_end(code, found, f"{found.reason}. {why_not}")
                    return code
                self._lose(found, placement)
                last, self.budget = (found, n_before + found.n_steps), budget
                n_before += found.n_saved
                begin = f"{found.reason}, after {count(found.n_steps, 'step')}"
            placement = self._next(code, found, begin)
            if placement is None:
                return self._code_of_stop(code)

    def _start(self, placement: Placement) -> tuple[int, Ending]:
        """Starts the ranks once; returns the exit code, and why they ended."""
        folder, variables, is_kept = self._folder(), dict(os.environ), False
        if folder is not None:
            variables[flight_files.VARIABLE] = str(folder)
        hosts = {} if placement.is_free else {"hosts": [*map(str, placement.hosts)]}
        self._note("start", ranks=placement.n_ranks, **hosts)
        self._growth.begin(placement)
        if self.orders is not None:
            self.orders.begin()
            self._describe(placement, "runs")
        watch = _Watch(folder, self._say)
        command = self.job.command(placement)
        try:
            code = self._signals.run(
                command, variables, lambda: self._obey() or watch.is_stuck()
            )
            logs = records.logs(folder)
            found = ending(code, logs)
            # The ranks have printed where their records are.
            is_kept = bool(logs) and found.kind in (Kind.LOST, Kind.ERROR)
            code = code if code >= 0 else _SIGNALS - code
            self._last = found.reason
            if self.orders is not None:
                self.orders.end(found.reason)
            return code, found
        finally:
            if folder is not None and not is_kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _obey(self) -> bool:
        """Passes on the orders to ranks that run; returns ``False``."""
        for order in [] if self.orders is None else self.orders.taken():
            self._growth.ask(order)
        self._growth.poll()
        return False

    def _seen_from_hosts(self, found: Ending, placement: Placement) -> Ending:
        """Returns an end, which a host that is out of reach has caused if there is one.

        A launcher may report the loss of a host by any exit code.
        """
        used = {host.name for host in placement.hosts}
        silent = sorted(used & self.fleet.out_of_reach)
        if found.kind is not Kind.ERROR or not silent:
            return found
        reason = f"{', '.join(silent)} out of reach: {found.reason}"
        return found._replace(kind=Kind.LOST, reason=reason, error="", rank=None)

    def _lose(self, found: Ending, placement: Placement) -> None:
        """Counts the loss of a rank against its host."""
        if found.kind is Kind.LOST and found.rank is not None:
            has_progress = found.n_saved >= self.budget.steps_to_recover
            self.fleet.lose(placement.host_of(found.rank), has_progress)

    def _next(self, code: int, found: Ending, begin: str) -> Placement | None:
        """Waits until ranks can start again; returns the hosts on which they do.

        Args:
            code: Exit code of the last start.
            found: The last end.
            begin: Words for it.

        Returns:
            The hosts; ``None`` after a signal, an order to stop, or with too few hosts
            and no restart left.
        """
        told = functools.partial(self._note_end, code, found)
        while True:
            placement, lost = self.fleet.place(), self.fleet.missing()
            because = f" ({lost})" if lost else ""
            if placement is not None:
                told(
                    f"{begin}. Starts {placement} again{because};"
                    f" {self.budget.left} more restarts"
                )
                if self._pause(placement):
                    self.fleet.look()
                    placement = self.fleet.place() or placement
                return None if self._is_stopped() else placement
            self.budget = self.budget.after(0)
            few = f"too few hosts for {self.fleet.n_ranks} ranks{because}"
            if self.budget.is_spent:
                told(
                    f"{begin}. All {self.budget.most} restarts are spent, with {few}."
                    f" Give --spares, or --shrink if the script can train on fewer"
                )
                return None
            told(
                f"{begin}. Asks again in {self.budget.pause:.0f} s, with {few};"
                f" {self.budget.left} more restarts"
            )
            self._pause(None)
            if self._is_stopped():
                return None
            begin, told = "asked all hosts again", self._wait_on
            self.fleet.look()

    def _pause(self, placement: Placement | None) -> bool:
        """Waits before a restart, unless a signal or an order to stop comes.

        Returns:
            Whether an order came to ask all hosts again.
        """
        end, is_asked = time.monotonic() + self.budget.pause, False
        self._describe(placement, "waits for a restart")
        while True:
            for order in [] if self.orders is None else self.orders.taken():
                is_asked = True
                self.fleet.forgive()
                self.orders.answer(order, "all hosts are asked before the next restart")
            left = end - time.monotonic()
            if self._is_stopped() or left <= 0:
                return is_asked
            time.sleep(min(left, 0.1))

    def _is_stopped(self) -> bool:
        """Returns whether a signal or an order has stopped the run."""
        ordered = self.orders is not None and self.orders.stops
        return self._signals.got is not None or ordered

    def _code_of_stop(self, code: int) -> int:
        """Returns the exit code of a run that does not start again."""
        if self.orders is not None:
            self.orders.end("the ranks do not start again")
        if self._signals.got is not None:
            return _SIGNALS + self._signals.got
        return STOPPED if self._is_stopped() else code

    def _folder(self) -> Path | None:
        """Makes a directory for the flight records of a start, if there can be one."""
        try:
            return records.new_folder()
        except OSError as error:
            self._say(f"the ranks leave no flight records, so less is known: {error}")
            return None

    def _say(self, text: str) -> None:
        print(f"divisible run: {text}", file=sys.stderr, flush=True)

    def _note_end(self, code: int, found: Ending, line: str = "") -> None:
        """Writes an end into the log, and prints the line about it if there is one."""
        facts = {"kind": found.kind.value, "reason": found.reason, "code": code}
        self._note("end", **facts, **({"line": line} if line else {}))
        if line:
            self._say(line)

    def _wait_on(self, line: str) -> None:
        """Prints a line about a wait, and writes it into the log."""
        self._note("wait", line=line)
        self._say(line)

    def _note(self, event: str, **facts: object) -> None:
        if self.log is None:
            return
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts})
        with self._files.writing(self.log):
            append_line(self.log, line)

    def _describe(self, placement: Placement | None, state: str) -> None:
        if self.orders is not None:
            ranks = "no ranks" if placement is None else str(placement)
            self.orders.describe(ranks, state, self.budget.left, self._last)


class _Watch:
    """Ranks of this host, and whether their launcher has noticed the end of one.

    Args:
        folder: Directory of their flight records; ``None`` if there is none.
        say: Function that prints a line.
    """

    def __init__(self, folder: Path | None, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        self._since: float | None = None

    def is_stuck(self) -> bool:
        """Returns whether a launcher still runs long after the end of a rank."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        log = records.ended(self._folder)
        if log is None:
            self._since = None
            return False
        self._since = self._since or now
        if now - self._since < _SECONDS_TO_END:
            return False
        self._say(
            f"rank {log.rank} on {log.host} ended {now - self._since:.0f} s ago, but"
            f" the launcher still runs. Ends the launcher"
        )
        return True


def _why_not(
    found: Ending, last: tuple[Ending, int] | None, n_before: int, budget: Budget
) -> str:
    """Returns the reason against a restart, as a sentence; empty if there is none.

    Args:
        found: The end.
        last: The end before, and the number of steps since the first start until then.
        n_before: Number of steps before this start that a snapshot has.
        budget: The budget after the restart.
    """
    if last is not None and found.error and found.error == last[0].error:
        # The ranks may resume from the same snapshot or from a later one.
        is_alike = found.n_steps == last[0].n_steps
        is_alike &= found.n_saved < budget.steps_to_recover
        if is_alike or n_before + found.n_steps == last[1]:
            return "The same error came at the same step twice, so it is the program's"
    if budget.is_spent:
        return (
            f"All {budget.most} restarts are spent; {budget.steps_to_recover} steps"
            f" in a snapshot would give one back"
        )
    return ""
