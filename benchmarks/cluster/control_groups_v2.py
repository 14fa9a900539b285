"""Control groups of version 2: one hierarchy, whose groups have several limits.

This module was tested on a folder that looks like such a hierarchy, and on a real one
without limits of CPU and memory. No test has run where a kernel limits by it.

A group has the limits that its parent's file ``cgroup.subtree_control`` names. The
kernel refuses to add some while the parent has processes itself, unless the parent is
the root of the machine. In a container, the root that is visible is a group of the
machine, with processes.
"""

from __future__ import annotations

import os
from pathlib import Path

CONTROLLERS = ("cpu", "memory")
UNLIMITED = "max"


class Version2:
    """The files of groups in the hierarchy.

    Args:
        root: Folder in which the hierarchy is mounted.

    Attributes:
        parents (list of Path): Folder of all groups.
    """

    def __init__(self, root: Path) -> None:
        self.parents = [root]
        self._root = root

    def folders(self, group: str) -> list[Path]:
        """Returns the folder of a group."""
        return [self._root / group]

    def missing(self) -> str | None:
        """Returns why groups cannot be limited; ``None`` if they can be."""
        root = self._root
        there = root.joinpath("cgroup.controllers").read_text().split()
        for controller in CONTROLLERS:
            if controller not in there:
                return (
                    f"the control groups (version 2) in {root} have no limits of"
                    f" {controller}: {root}/cgroup.controllers does not name it"
                )
        if os.statvfs(root).f_flag & os.ST_RDONLY:
            return f"{root} is read-only"
        # The root of the machine has no type.
        is_group = root.joinpath("cgroup.type").exists()
        has_processes = root.joinpath("cgroup.procs").read_text().strip() != ""
        if self._disabled() and is_group and has_processes:
            return (
                f"the control group {root} (version 2) has processes of its own, so its"
                f" groups can have no limits; move them into one: mkdir {root}/init &&"
                f" for pid in $(cat {root}/cgroup.procs); do echo $pid >"
                f" {root}/init/cgroup.procs; done"
            )
        return None

    def _disabled(self) -> list[str]:
        """Returns the limits that new groups would not have."""
        enabled = self._root.joinpath("cgroup.subtree_control").read_text().split()
        return [each for each in CONTROLLERS if each not in enabled]

    def prepare(self) -> None:
        """Enables limits for new groups; the machine keeps this setting."""
        disabled = self._disabled()
        if disabled:
            words = " ".join(f"+{controller}" for controller in disabled)
            self._root.joinpath("cgroup.subtree_control").write_text(words)

    def set_quota(self, group: str, quota: int, period: int) -> None:
        """Gives a group some microseconds of CPU time in each period."""
        self._root.joinpath(group, "cpu.max").write_text(f"{quota} {period}")

    def quota_of(self, group: str) -> tuple[int | None, int]:
        """Returns quota and period in microseconds; no quota if it is not limited."""
        quota, period = self._root.joinpath(group, "cpu.max").read_text().split()
        return (None if quota == UNLIMITED else int(quota)), int(period)

    def set_memory(self, group: str, n_bytes: int) -> None:
        """Limits the memory of a group."""
        self._root.joinpath(group, "memory.max").write_text(str(n_bytes))

    def memory_of(self, group: str) -> int | None:
        """Returns the limit of a group's memory in bytes, if there is one."""
        limit = self._root.joinpath(group, "memory.max").read_text().strip()
        return None if limit == UNLIMITED else int(limit)

    def peak_memory(self, group: str) -> int:
        """Returns the most bytes that the processes of a group had at once.

        Raises:
            RuntimeError: If the kernel does not count them.
        """
        file = self._root / group / "memory.peak"
        if not file.exists():
            raise RuntimeError(
                f"there is no {file}: with control groups of version 2, the most memory"
                " of a host is counted since Linux 5.19"
            )
        return int(file.read_text())
