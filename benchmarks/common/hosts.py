"""Emulated hosts: what the benchmarks on them share.

Each host is a network namespace with a CPU quota, a limited link and, if asked for, a
memory limit: real processes, real TCP, and ratios between runs on the same hosts are
honest. The cluster is taken down in every case.

This module does not import MPI, which the process that starts the hosts must not start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.results import command

ROOT = Path(__file__).parents[2]
STATE = Path("/run/emulated_cluster.json")
#: Seconds between two looks of a host that waits for the next step: seldom, because
#: looking uses its quota.
PAUSE = 0.05
#: What the rates of links mean, in bits per second.
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Hosts:
    """Equal hosts.

    Attributes:
        n: How many.
        share: Of a core, each. All together should be less than the machine has.
        rate: Of each host's link, such as ``'1gbit'``; no limit if ``None``.
        memory: Limit of each host, such as ``'1G'``; no limit if ``None``.
    """

    n: int
    share: float
    rate: str | None = "1gbit"
    memory: str | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a link; infinite without a limit."""
        if self.rate is None:
            return float("inf")
        number = self.rate.rstrip("kmgbit")
        return float(number) * UNITS[self.rate[len(number) :]] / 8


def missing() -> str | None:
    """Says why this machine cannot emulate hosts, or ``None`` if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it needs root on Linux"
    for kind in ("cpu", "memory"):
        if not Path("/sys/fs/cgroup", kind, "tasks").exists():
            return f"it needs cgroup v1, and /sys/fs/cgroup/{kind} is not of it"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool}; install iproute2"
    if shutil.which("mpiexec") is None:
        return "there is no mpiexec beside this Python or on the PATH"
    if STATE.exists():
        return f"another cluster is up; take it down first ({STATE})"
    return None


def prepare() -> None:
    """Sets this process up to start hosts; ends it where there cannot be any."""
    # The environment's own mpiexec, which the cluster looks for on the PATH.
    beside = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([beside, os.environ.get("PATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    reason = missing()
    if reason:
        print(f"SKIPPED: no hosts can be emulated here: {reason}")
        sys.exit(0)
    # An exception, so that the cluster is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))


def add_hosts_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--cluster`` and ``--cpu``."""
    parser.add_argument(
        "--cluster", type=Path, required=True, help="path of emulated_cluster"
    )
    parser.add_argument("--cpu", type=float, default=1.6, help="of all hosts, in cores")


def command_line(cluster: Path) -> str:
    """Returns this process's command, the cluster without its folder."""
    return command().replace(str(cluster), cluster.name)


@contextmanager
def _up(cluster: Path, hosts: Hosts) -> Iterator[None]:
    def call(*arguments: str) -> None:
        command = [sys.executable, cluster, *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait()
        finally:
            # Even if this one is told to stop: of hosts that are half up, or half down,
            # nobody knows.
            code = process.wait()
        if code:
            raise subprocess.CalledProcessError(code, command)

    words = ["--cpus", f"{hosts.share:g}", "--count", str(hosts.n)]
    if hosts.rate is not None:
        words += ["--rate", hosts.rate]
    if hosts.memory is not None:
        words += ["--memory", hosts.memory]
    # Every host knows the address of every other: more than the usual 1024 in all, of
    # which the kernel forgets some, and then hosts find no way to each other.
    limit = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    usual = limit.read_text()
    try:
        limit.write_text(str(max(int(usual), 4 * hosts.n**2)))
        call("up", *words)
        yield
    finally:
        limit.write_text(usual)
        if STATE.exists():
            call("down")


def run(
    cluster: Path, hosts: Hosts, module: str, job: dict[str, Any], timeout: float
) -> Any:
    """Runs ``python -m MODULE --work JOB REPORT`` on every host.

    Args:
        cluster: Path of emulated_cluster.
        hosts: The hosts, with one process each.
        module: Whose ranks read the job with :func:`read_job`, and of which the first
            writes the report.
        job: What goes into JSON.
        timeout: Seconds.

    Returns:
        The report; ``None`` if there was none. If the hosts' memory is limited, it has
        the most bytes that the kernel has counted on each, as ``'counted'``.

    Raises:
        HostsFailedError: If a process failed.
        subprocess.TimeoutExpired: If it took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        # In files: the host's shell would take a command line apart.
        task, report = Path(folder, "job.json"), Path(folder, "report.json")
        task.write_text(json.dumps(job))
        command = [sys.executable, cluster, "run", "-n", str(hosts.n), "--"]
        command += [sys.executable, "-m", module, "--work", task, report]
        with _up(cluster, hosts):
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
            try:
                code = process.wait(timeout)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(10)
            counted = [_peak_memory(host) for host in range(hosts.n)]
        if code:
            raise HostsFailedError(hosts, code)
        if not report.exists():
            return None
        answer = json.loads(report.read_text())
        if hosts.memory is not None:
            answer["counted"] = counted
        return answer


def _peak_memory(host: int) -> int:
    """Reads what the hosts themselves cannot see."""
    folder = Path("/sys/fs/cgroup/memory", f"emu{host}")
    return int((folder / "memory.max_usage_in_bytes").read_text())


class HostsFailedError(RuntimeError):
    """A process on a host failed.

    Args:
        hosts: All of them.
        code: What the run ended with.
    """

    def __init__(self, hosts: Hosts, code: int) -> None:
        super().__init__(f"the run on {hosts.n} hosts ended with code {code}")
        #: Whether the system killed it, as it does at the memory limit.
        self.killed = code % 128 == signal.SIGKILL


def read_job() -> tuple[dict[str, Any], Path] | None:
    """Returns the job and where its report goes, on a host; ``None`` elsewhere."""
    if sys.argv[1:2] != ["--work"]:
        return None
    return json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
