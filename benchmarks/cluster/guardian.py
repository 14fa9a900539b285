"""The process that makes a cluster, waits for the end of its owner, and removes it.

It is in a session of its own, so that what ends the owner does not end it. It reads one
line of JSON: the name of the cluster, its hosts and its owner. When all is there it
closes its output, and it removes all before it ends: when the owner has ended, however
that was, on SIGTERM, or if something goes wrong, which it says.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys

from benchmarks.cluster import registry
from benchmarks.cluster.construction import (
    ClusterError,
    Host,
    build,
    remove,
    remove_stale,
)
from benchmarks.cluster.registry import HostEntry


def main() -> None:
    """Guards the cluster that a line of standard input describes."""
    # From here on SIGTERM only shows in a pipe, so that nothing stays half made.
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGTERM, lambda *_: None)
    task = json.loads(sys.stdin.readline())
    try:
        guard(
            task["name"], [Host(*each) for each in task["hosts"]], task["owner"], told
        )
    except Exception as error:
        close_output(str(error) or repr(error))
        sys.exit(1)


def guard(name: str, hosts: list[Host], owner: int | None, told: int) -> None:
    """Makes a cluster, and removes it at the end.

    Args:
        name: Name of the cluster.
        hosts: Limits of the hosts.
        owner: The process whose end is awaited, if any.
        told: File descriptor that is readable when this process was told to end.
    """
    ends = [told] if owner is None else [told, os.pidfd_open(owner)]
    remove_stale()
    with registry.locked(name) as file:
        if file is None:
            raise ClusterError(f"a cluster {name!r} is up already")
        registry.write(file, HostEntry(name, os.getpid(), owner))
        try:
            build(name, hosts)
            close_output()
            select.select(ends, [], [])
        finally:
            remove(name)


def close_output(text: str = "") -> None:
    """Writes the outcome for the process that started this one; nothing for success."""
    # The reader may have ended.
    with contextlib.suppress(OSError):
        os.write(1, text.encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


if __name__ == "__main__":
    main()
