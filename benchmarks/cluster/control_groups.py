"""Control groups (version 1): CPU shares and memory of hosts.

Every member of a cluster has a group of the same name in each of two hierarchies.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
KINDS = ("cpu", "memory")
#: Microseconds in which a quota is given out, and the least that the kernel takes for a
#: quota and the most for a period.
PERIOD, LEAST_QUOTA, MOST_PERIOD = 10_000, 1_000, 1_000_000
LEAST_CPUS = LEAST_QUOTA / MOST_PERIOD
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
#: Seconds that killed processes may take to end.
TIMEOUT = 20.0


def make(group: str) -> None:
    """Makes a group without limits."""
    for kind in KINDS:
        (ROOT / kind / group).mkdir()


def set_cpus(group: str, cpus: float) -> None:
    """Limits the CPU time of all processes of a group together.

    Args:
        group: Its name.
        cpus: In cores.
    """
    # Smaller shares take longer periods, as there is a least quota.
    period = max(PERIOD, round(LEAST_QUOTA / cpus))
    quota = max(LEAST_QUOTA, round(period * cpus))
    folder = ROOT / "cpu" / group
    folder.joinpath("cpu.cfs_period_us").write_text(str(period))
    folder.joinpath("cpu.cfs_quota_us").write_text(str(quota))


def cpus_of(group: str) -> float:
    """Returns the limit in cores; infinite without one."""
    folder = ROOT / "cpu" / group
    quota = int(folder.joinpath("cpu.cfs_quota_us").read_text())
    period = int(folder.joinpath("cpu.cfs_period_us").read_text())
    return quota / period if quota > 0 else float("inf")


def n_bytes(memory: str) -> int:
    """Returns the bytes that a size such as ``'512M'`` or ``'1.5G'`` means."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", memory)
    if found is None:
        raise ValueError(f"{memory!r} is not a size of memory, such as '512M' or '1G'")
    return int(float(found[1]) * UNITS[found[2]])


def set_memory(group: str, memory: str) -> None:
    """Limits the memory of all processes of a group together, such as to ``'1G'``."""
    file = ROOT / "memory" / group / "memory.limit_in_bytes"
    file.write_text(str(n_bytes(memory)))


def memory_of(group: str) -> int | None:
    """Returns the limit of a group's memory in bytes, if there is one."""
    limit = int((ROOT / "memory" / group / "memory.limit_in_bytes").read_text())
    # Without one the kernel gives the largest number of whole pages.
    return limit if limit < 2**62 else None


def peak_memory(group: str) -> int:
    """Returns the most bytes that the processes of a group had at once."""
    return int((ROOT / "memory" / group / "memory.max_usage_in_bytes").read_text())


def groups_of(prefix: str) -> list[str]:
    """Returns the names of the groups that begin so, in whichever hierarchy."""
    folders = (ROOT.joinpath(kind).glob(f"{prefix}*") for kind in KINDS)
    return sorted({folder.name for each in folders for folder in each})


def processes(group: str) -> list[int]:
    """Returns the ids of the processes in a group."""
    found: set[int] = set()
    for kind in KINDS:
        file = ROOT / kind / group / "cgroup.procs"
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
    for kind in KINDS:
        folder = ROOT / kind / group
        if folder.exists():
            folder.rmdir()
