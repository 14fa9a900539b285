"""The room in memory for a copy: of a machine, of its control groups, of a process.

What is free between two minibatches is not all free within them: what a process had at
its peak, beside what it has now, counts as taken.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# Of what is left; the rest is for others, and for what nobody has reckoned with.
_SHARE = 0.9
_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


class Claim(NamedTuple):
    """What a process would take of a place where there is a limit.

    Attributes:
        where: In words.
        taken: Bytes.
        left: Bytes that all who share the place may take together.
    """

    where: str
    taken: int
    left: int


def claims(
    n_bytes: int, proc: Path = _PROC, groups: Path = _GROUPS
) -> dict[str, Claim]:
    """Returns what a copy would take here, by a name of each place with a limit.

    Processes that share a place give it the same name. Where the system does not say,
    there is none.

    Args:
        n_bytes: Of the copy.
        proc: Where the system tells of processes.
        groups: Where it tells of control groups.
    """
    found = {}
    own = _fields(proc / "self/status")
    taken = n_bytes + max(0, own.get("VmHWM", 0) - own.get("VmRSS", 0))
    boot = _text(proc / "sys/kernel/random/boot_id")
    machine = _fields(proc / "meminfo")
    if "MemAvailable" in machine:
        found[f"machine {boot}"] = Claim("the machine", taken, machine["MemAvailable"])
    for group in _groups_of(proc, groups):
        left = _left_in(group)
        if left is not None:
            name = f"group {boot} {group.stat().st_ino}"
            found[name] = Claim(f"the control group {group}", taken, left)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and "VmSize" in own:
        taken = n_bytes + max(0, own.get("VmPeak", 0) - own["VmSize"])
        pid = _fields(proc / "self/status", 1).get("Pid", 0)
        words = "its limit of addresses (ulimit -v)"
        found[f"process {boot} {pid}"] = Claim(words, taken, limit - own["VmSize"])
    return found


def refusal(everyone: Sequence[Mapping[str, Claim]]) -> str | None:
    """Returns where there is no room for all copies together, if so, in words.

    Args:
        everyone: The claims of all ranks.
    """
    for rank, theirs in enumerate(everyone):
        for name, claim in theirs.items():
            sharing = [each[name] for each in everyone if name in each]
            taken = sum(each.taken for each in sharing)
            left = min(each.left for each in sharing)
            if taken > _SHARE * left:
                return (
                    f"rank {rank}: the copies take up to {taken / 2**20:.0f} MiB, and"
                    f" {max(left, 0) / 2**20:.0f} MiB are left of {claim.where}"
                )
    return None


def _groups_of(proc: Path, root: Path) -> Iterator[Path]:
    """Yields the control groups of this process that may limit memory, and above."""
    for line in _text(proc / "self/cgroup").splitlines():
        _, kinds, path = (line.split(":", 2) + ["", ""])[:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        top = root / "memory" if kinds else root
        group = top / path.lstrip("/")
        # In a container the path may be that on its host.
        while True:
            if group.is_dir():
                yield group
            if group == top or top not in group.parents:
                break
            group = group.parent


def _left_in(group: Path) -> int | None:
    """Returns how many bytes a control group may still take; ``None`` for any number.

    What it keeps of files can go.
    """
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(ValueError):
            most, now = int(_text(group / limit)), int(_text(group / usage))
            # What the kernel shows for no limit.
            if most < 2**60:
                return most - now + _fields(group / "memory.stat", 1).get(cache, 0)
    return None


def _fields(file: Path, unit: int = 1024) -> dict[str, int]:
    """Returns numbers by name, as the system writes them line by line."""
    found = {}
    for line in _text(file).splitlines():
        name, *values = line.replace(":", " ").split()
        if values and values[0].isdecimal():
            found[name] = int(values[0]) * unit
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
