"""Control groups of version 1: a hierarchy for CPU time, and one for memory."""

from __future__ import annotations

import os
from pathlib import Path

KINDS = ("cpu", "memory")


class Version1:
    """The files of groups in the two hierarchies.

    Args:
        root: Folder in which the hierarchies are mounted.

    Attributes:
        parents (list of Path): Folder of all groups in each hierarchy.
    """

    def __init__(self, root: Path) -> None:
        self.parents = [root / kind for kind in KINDS]
        self._cpu, self._memory = self.parents

    def folders(self, group: str) -> list[Path]:
        """Returns the folder of a group in each hierarchy."""
        return [parent / group for parent in self.parents]

    def missing(self) -> str | None:
        """Returns why groups cannot be limited; ``None`` if they can be."""
        for folder in self.parents:
            if not (folder / "cgroup.procs").exists():
                return f"there are no control groups (version 1) in {folder}"
            if os.statvfs(folder).f_flag & os.ST_RDONLY:
                return f"{folder} is read-only"
        return None

    def prepare(self) -> None:
        """Does nothing: every group has all limits of its hierarchy."""

    def set_quota(self, group: str, quota: int, period: int) -> None:
        """Gives a group some microseconds of CPU time in each period."""
        folder = self._cpu / group
        folder.joinpath("cpu.cfs_period_us").write_text(str(period))
        folder.joinpath("cpu.cfs_quota_us").write_text(str(quota))

    def quota_of(self, group: str) -> tuple[int | None, int]:
        """Returns quota and period in microseconds; no quota if it is not limited."""
        folder = self._cpu / group
        quota = int(folder.joinpath("cpu.cfs_quota_us").read_text())
        period = int(folder.joinpath("cpu.cfs_period_us").read_text())
        return (quota if quota > 0 else None), period

    def set_memory(self, group: str, n_bytes: int) -> None:
        """Limits the memory of a group."""
        file = self._memory / group / "memory.limit_in_bytes"
        file.write_text(str(n_bytes))

    def memory_of(self, group: str) -> int | None:
        """Returns the limit of a group's memory in bytes, if there is one."""
        limit = int((self._memory / group / "memory.limit_in_bytes").read_text())
        # Without one the kernel gives the largest number of whole pages.
        return limit if limit < 2**62 else None

    def peak_memory(self, group: str) -> int:
        """Returns the most bytes that the processes of a group had at once."""
        return int((self._memory / group / "memory.max_usage_in_bytes").read_text())
