"""Memory that a process may still take: of the machine, and of its control groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def free_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Returns how much memory this process may take, without pushing others out.

    The result is 0 where the operating system does not report its free memory.

    Args:
        proc: Folder in which the system describes its memory and this process.
        groups: Folder of the control groups, of version 1 or 2.
    """
    free = fields_of(proc / "meminfo").get("MemAvailable", 0)
    # Some processes may not read the data of a group.
    with contextlib.suppress(OSError):
        for group in groups_of(proc, groups):
            left = left_in(group)
            if left is not None:
                free = min(free, max(0, left))
    return free


def groups_of(proc: Path, root: Path) -> Iterator[Path]:
    """Yields the control groups that may limit this process, and those above them.

    Args:
        proc: Folder in which the system describes this process.
        root: Folder of the control groups, of version 1 or 2.
    """
    for line in text_of(proc / "self/cgroup").splitlines():
        _, kinds, path = (line.split(":", 2) + ["", ""])[:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        top = root / "memory" if kinds else root
        group = top / path.lstrip("/")
        # In a container the path may be the one on its host.
        while True:
            if group.is_dir():
                yield group
            if group == top or top not in group.parents:
                break
            group = group.parent


def left_in(group: Path) -> int | None:
    """Returns how many more bytes a control group may use; ``None`` without a limit.

    The group's cache of files counts as free.
    """
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(ValueError):
            most, now = int(text_of(group / limit)), int(text_of(group / usage))
            # The kernel shows a huge number if there is no limit.
            if most < 2**60:
                return most - now + fields_of(group / "memory.stat", 1).get(cache, 0)
    return None


def fields_of(file: Path, unit: int = 1024) -> dict[str, int]:
    """Returns numbers by name, as the system writes them line by line.

    Args:
        file: The file; without it there are no numbers.
        unit: The factor from the file's unit to that of the result.
    """
    found = {}
    for line in text_of(file).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isascii() and words[1].isdecimal():
            found[words[0]] = int(words[1]) * unit
    return found


def text_of(file: Path) -> str:
    """Returns the text of a file; an empty one if it cannot be read."""
    # Names of processes and groups may have any bytes, so errors are replaced.
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""
