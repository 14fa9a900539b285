"""Starts the ranks, with a deadline, and finds hosts that do not answer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

# Seconds of a launcher to end its ranks, once it was told to.
_SECONDS_TO_END = 5.0


def run(command: Sequence[str], seconds: float) -> int | None:
    """Runs a launcher, whose output goes where this process's goes.

    Args:
        command: The launcher and its arguments.
        seconds: Deadline; then the launcher and all ranks are ended.

    Returns:
        The exit code; ``None`` after the deadline.

    Raises:
        OSError: If the launcher cannot be started.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def silent_hosts(
    command: Sequence[str], hosts: Sequence[str], seconds: float
) -> dict[str, str]:
    """Returns the hosts on which a launcher starts nothing, each with the reason.

    All hosts are asked at the same time, each by a launcher of its own.

    Args:
        command: The launcher with its options, before those of hosts.
        hosts: Names of hosts.
        seconds: Deadline of each.
    """
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        reasons = pool.map(lambda host: _silence(command, host, seconds), hosts)
    return {host: reason for host, reason in zip(hosts, reasons) if reason}


def _silence(command: Sequence[str], host: str, seconds: float) -> str:
    process = subprocess.Popen(
        [*command, *on_hosts([host.partition(":")[0]]), "-n", "1", "true"],
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


def on_hosts(hosts: Sequence[str]) -> list[str]:
    """Returns the launcher's arguments for hosts: of MPICH and of Open MPI alike."""
    return ["-host", ",".join(hosts)] if hosts else []


def n_slots(hosts: Sequence[str]) -> int:
    """Returns the number of ranks of hosts: one each, or the number after a colon.

    Raises:
        ValueError: If it is not a number.

    Example:
        >>> n_slots(["a", "b:2"])
        3
    """
    slots = [host.partition(":")[2] or "1" for host in hosts]
    for host, n in zip(hosts, slots):
        if not n.isdecimal() or int(n) < 1:
            raise ValueError(f"{host!r} in --hosts: write HOST, or HOST:RANKS")
    return sum(map(int, slots))


def _end(process: subprocess.Popen) -> None:
    """Ends a launcher and its ranks, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
