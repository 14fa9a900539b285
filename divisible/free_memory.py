"""Memory that is left for a copy: of a machine, of control groups, of a process.

Memory that is free between two minibatches may be needed within them. So memory that a
process used at its peak, beyond its present use, counts as used. Peaks never fall. They
include earlier copies, which do not count.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chainer_kernels.memory_limits import fields_of, groups_of, left_in, text_of

# Share of the free memory that may be used; the rest is for unknown needs.
_SHARE = 0.9
_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


class Claim(NamedTuple):
    """The memory that a process needs for a copy, in one place with a limit.

    Attributes:
        where: Name of the place, in words.
        taken: Bytes that the process needs.
        left: Bytes that all processes in the place may use together.
    """

    where: str
    taken: int
    left: int


class Peaks:
    """The memory of a process at its peaks, beyond that between two minibatches.

    Code that makes a copy calls :meth:`hold` before, and :meth:`free` when it is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = self._most_held = 0
        # The largest excess so far, as a copy may have a higher peak than a step.
        self._beyond: dict[str, int] = {}

    def hold(self, n_bytes: int) -> None:
        """Records that a copy is about to be made."""
        with self._lock:
            self._held += n_bytes
            self._most_held = max(self._held, self._most_held)

    def free(self, n_bytes: int) -> None:
        """Records that a copy is gone."""
        with self._lock:
            self._held -= n_bytes

    def beyond(self, kind: str, peak: int, now: int) -> int:
        """Returns by how much a peak exceeds the present memory, without copies.

        Args:
            kind: Kind of memory; each kind has its own peak.
            peak: Bytes at the peak.
            now: Bytes at this moment.
        """
        with self._lock:
            found = max(0, peak - now - (self._most_held - self._held))
            self._beyond[kind] = max(found, self._beyond.get(kind, 0))
            return self._beyond[kind]


#: The peaks of this process.
PEAKS = Peaks()


def claims(
    n_bytes: int, proc: Path = _PROC, groups: Path = _GROUPS, peaks: Peaks = PEAKS
) -> dict[str, Claim]:
    """Returns the memory that a copy needs, by a name of each place with a limit.

    Processes that share a place give it the same name. Places are left out if the
    system does not report them.

    Args:
        n_bytes: Bytes of the copy.
        proc: Directory with the system's data on processes.
        groups: Directory with the system's data on control groups.
        peaks: The peaks of this process.
    """
    found = {}
    own = fields_of(proc / "self/status")
    now = own.get("VmRSS", 0)
    taken = n_bytes + peaks.beyond("resident", own.get("VmHWM", 0), now)
    boot = text_of(proc / "sys/kernel/random/boot_id")
    machine = fields_of(proc / "meminfo")
    if "MemAvailable" in machine:
        found[f"machine {boot}"] = Claim("the machine", taken, machine["MemAvailable"])
    # Some processes may not read the data of a group.
    with contextlib.suppress(OSError):
        for group in groups_of(proc, groups):
            left, name = left_in(group), f"group {boot} {group.stat().st_ino}"
            if left is not None:
                found[name] = Claim(f"the control group {group}", taken, left)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and "VmSize" in own:
        now = own["VmSize"]
        taken = n_bytes + peaks.beyond("addresses", own.get("VmPeak", 0), now)
        pid = fields_of(proc / "self/status", 1).get("Pid", 0)
        words = "its limit of addresses (ulimit -v)"
        found[f"process {boot} {pid}"] = Claim(words, taken, limit - now)
    return found


def refusal(everyone: Sequence[Mapping[str, Claim]]) -> str | None:
    """Returns a place without enough memory for all copies, in words, or ``None``.

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
