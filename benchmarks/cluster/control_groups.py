"""Control groups: CPU shares and memory of hosts.

Every member of a cluster has a group of its own, in each hierarchy of the version that
this machine has mounted::

    version 1    /sys/fs/cgroup/cpu/GROUP, /sys/fs/cgroup/memory/GROUP
    version 2    /sys/fs/cgroup/GROUP

A machine with both has the limits of CPU and memory in version 1.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from benchmarks.cluster.control_groups_v1 import Version1
from benchmarks.cluster.control_groups_v2 import Version2

ROOT = Path("/sys/fs/cgroup")
#: Microseconds in which a quota is given out, and the least that the kernel takes for a
#: quota and the most for a period.
PERIOD, LEAST_QUOTA, MOST_PERIOD = 10_000, 1_000, 1_000_000
LEAST_CPUS = LEAST_QUOTA / MOST_PERIOD
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
#: Seconds that killed processes may take to end.
TIMEOUT = 20.0


def version() -> Version1 | Version2:
    """Returns the version that limits groups here."""
    is_second = (ROOT / "cgroup.controllers").exists()
    return Version2(ROOT) if is_second else Version1(ROOT)


def missing() -> str | None:
    """Returns why there can be no groups with limits; ``None`` if there can be."""
    return version().missing()


def make(group: str) -> None:
    """Makes a group without limits."""
    here = version()
    here.prepare()
    for folder in here.folders(group):
        folder.mkdir()


def set_cpus(group: str, cpus: float) -> None:
    """Limits the CPU time of all processes of a group together.

    Args:
        group: Name of the group.
        cpus: Limit in cores.
    """
    # Smaller shares take longer periods, as there is a least quota.
    period = max(PERIOD, round(LEAST_QUOTA / cpus))
    quota = max(LEAST_QUOTA, round(period * cpus))
    version().set_quota(group, quota, period)


def cpus_of(group: str) -> float:
    """Returns the limit in cores; infinite without one."""
    quota, period = version().quota_of(group)
    return float("inf") if quota is None else quota / period


def n_bytes(memory: str) -> int:
    """Returns the bytes that a size such as ``'512M'`` or ``'1.5G'`` means."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", memory)
    if found is None:
        raise ValueError(f"{memory!r} is not a size of memory, such as '512M' or '1G'")
    return int(float(found[1]) * UNITS[found[2]])


def set_memory(group: str, memory: str) -> None:
    """Limits the memory of all processes of a group together, such as to ``'1G'``."""
    version().set_memory(group, n_bytes(memory))


def memory_of(group: str) -> int | None:
    """Returns the limit of a group's memory in bytes, if there is one."""
    return version().memory_of(group)


def peak_memory(group: str) -> int:
    """Returns the most bytes that the processes of a group had at once."""
    return version().peak_memory(group)


def groups_of(prefix: str) -> list[str]:
    """Returns the names of the groups that begin so, in whichever hierarchy."""
    folders = (parent.glob(f"{prefix}*") for parent in version().parents)
    return sorted({folder.name for each in folders for folder in each})


def processes(group: str) -> list[int]:
    """Returns the ids of the processes in a group."""
    found: set[int] = set()
    for folder in version().folders(group):
        file = folder / "cgroup.procs"
        if file.exists():
            found.update(map(int, file.read_text().split()))
    return sorted(found)


def kill(groups: list[str]) -> None:
    """Kills all processes of some groups and waits until they have ended.

    Raises:
        TimeoutError: If some processes have not ended.
    """
    deadline = time.monotonic() + TIMEOUT
    # Again and again, for they may start others meanwhile.
    while left := [pid for group in groups for pid in processes(group)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not end {TIMEOUT:g} s after kill")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def remove(group: str) -> None:
    """Removes a group without processes, from each hierarchy where it is."""
    for folder in version().folders(group):
        if folder.exists():
            folder.rmdir()
