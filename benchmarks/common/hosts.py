"""Emulated hosts, on which a benchmark runs.

This module does not import MPI, which the process that starts the hosts must not start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Callable

from benchmarks.cluster import Cluster, bandwidth, cluster, missing
from benchmarks.common.results import ROOT

#: Seconds between two looks of a host that waits for the next step: seldom, because
#: looking uses its quota.
PAUSE = 0.05
#: Share of all hosts together, in cores, unless a command says otherwise.
CPU = 1.6


@dataclass(frozen=True)
class Hosts:
    """Hosts that are equal, except for their shares of a core.

    Attributes:
        n: Number of hosts.
        share: Share of a core, one for all hosts or one for each. Together they should
            be less than the machine has.
        rate: Rate of each host's link, such as ``'1gbit'``; no limit if ``None``.
        memory: Limit of each host, such as ``'1G'``; no limit if ``None``.
        ranks: Number of ranks on each host.
    """

    n: int
    share: float | Sequence[float]
    rate: str | None = "1gbit"
    memory: str | None = None
    ranks: int = 1

    @property
    def shares(self) -> list[float]:
        """The share of each host."""
        is_one = isinstance(self.share, (int, float))
        return [self.share] * self.n if is_one else list(self.share)

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a link; infinite without a limit."""
        return bandwidth(self.rate)


def prepare() -> None:
    """Sets this process up to start hosts; ends it where there cannot be any."""
    os.environ["OMP_NUM_THREADS"] = "1"
    reason = missing()
    if reason:
        print(f"SKIPPED: no hosts can be emulated here: {reason}")
        sys.exit(0)


def keep_freed_memory() -> None:
    """Keeps the memory that programs on hosts free, for their next step.

    The C library would give it back to the system, which would have to clear it at
    every step.
    """
    os.environ["MALLOC_MMAP_MAX_"] = "0"
    os.environ["MALLOC_TRIM_THRESHOLD_"] = str(1 << 40)


def add_hosts_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--cpu``."""
    parser.add_argument("--cpu", type=float, default=CPU, help="of all hosts, in cores")


def run(
    hosts: Hosts,
    module: str,
    job: dict[str, Any],
    timeout: float,
    meanwhile: Callable[[Cluster], None] | None = None,
) -> Any:
    """Calls a benchmark's ``work(job)`` on every host.

    Args:
        hosts: The hosts, and how many processes each of them has.
        module: Name of the module with that function.
        job: Argument of ``work``, in a form for JSON.
        timeout: Seconds that the run may take.
        meanwhile: Function that is called with the cluster in a thread of its own; it
            must end when the program does.

    Returns:
        The result of the first rank's call. If the hosts' memory is limited, it has the
        most bytes that the kernel has counted on each, as ``'counted'``.

    Raises:
        HostsFailedError: If a process failed.
        subprocess.TimeoutExpired: If the run took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        task, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        task.write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks.common.on_host", module]
        with cluster(hosts.shares, hosts.rate, hosts.memory) as emulated:
            if meanwhile is not None:
                Thread(target=meanwhile, args=(emulated,), daemon=True).start()
            done = emulated.run(
                hosts.n * hosts.ranks,
                [*command, str(task), str(answer)],
                timeout=timeout,
                cwd=ROOT,
            )
            counted = None
            if hosts.memory is not None:
                counted = [emulated.peak_memory(host) for host in range(hosts.n)]
        if done.returncode:
            raise HostsFailedError(hosts, done.returncode)
        found = json.loads(answer.read_text())
        if counted is not None:
            found["counted"] = counted
        return found


class HostsFailedError(RuntimeError):
    """A process on a host failed.

    Args:
        hosts: All hosts.
        code: Exit code of the run.
    """

    def __init__(self, hosts: Hosts, code: int) -> None:
        super().__init__(f"the run on {hosts.n} hosts ended with code {code}")
        #: Whether the system killed it, as it does at the memory limit.
        self.killed = code % 128 == signal.SIGKILL
