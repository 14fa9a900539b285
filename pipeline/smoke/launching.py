"""Starts the ranks, with a deadline, and finds hosts that do not answer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

# Seconds of a launcher to end its ranks, once it was told to.
_SECONDS_TO_END = 5.0


class Ended(NamedTuple):
    """The end of a launcher.

    Attributes:
        code: The exit code; ``None`` after the deadline.
        output: Text that the launcher and the ranks printed.
    """

    code: int | None
    output: str


def run(command: Sequence[str], seconds: float) -> Ended:
    """Runs a launcher, and prints its output meanwhile.

    Args:
        command: The launcher and its arguments.
        seconds: Deadline; then the launcher and all ranks are ended.

    Raises:
        OSError: If the launcher cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    printing = threading.Thread(
        target=_print, args=(process.stdout, lines), daemon=True
    )
    printing.start()
    code = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds)
    finally:
        _end(process)
    # A process that left the launcher's group may keep the output open.
    printing.join(_SECONDS_TO_END)
    return Ended(code, "".join(lines))


def _print(stream: IO[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line)
        # Ranks go on where nobody reads, as with "| head".
        with contextlib.suppress(OSError):
            sys.stdout.write(line)
            sys.stdout.flush()


def silent_hosts(
    commands: Mapping[str, Sequence[str]], seconds: float
) -> dict[str, str]:
    """Returns the hosts on which a launcher starts nothing, each with the reason.

    All hosts are asked at the same time, each by a launcher of its own.

    Args:
        commands: The command that starts a program on a host, by the host's name.
        seconds: Deadline of each.
    """
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        reasons = pool.map(
            lambda command: _silence(command, seconds), commands.values()
        )
        return {host: reason for host, reason in zip(commands, reasons) if reason}


def _silence(command: Sequence[str], seconds: float) -> str:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"it does not answer within {seconds:.0f} s"
    finally:
        _end(process)
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"exit code {process.returncode}" + (f": {lines[0]}" if lines else "")


def _end(process: subprocess.Popen) -> None:
    """Ends a launcher and its ranks, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
