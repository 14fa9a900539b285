"""The names of hosts, as users and batch systems write them.

::

    --hosts node1:4,node2:4     a list, with the number of ranks that each host may run
    --hosts nodes.txt           a file, with a host on each line; a host that stands on
                                four lines may run four ranks
    SLURM_JOB_NODELIST          node[1-3,7], in an allocation of Slurm
    PBS_NODEFILE                such a file, in an allocation of PBS
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# A list of Slurm is split at commas that are in no brackets.
_OF_SLURM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_MOST_HOSTS = 100_000


class Host(NamedTuple):
    """A host, and the number of ranks that it may run, or that it runs.

    Attributes:
        name: Name by which a launcher reaches it; empty for the launcher's own choice.
        slots: Number of ranks; 0 where it is not given.
    """

    name: str
    slots: int = 0

    def __str__(self) -> str:
        """Returns the notation of launchers, such as ``node1:4``."""
        return f"{self.name}:{self.slots}" if self.slots else self.name


def read_hosts(text: str) -> list[Host]:
    """Returns the hosts of a list or of a file.

    Args:
        text: Names with commas between, or the path of a file.

    Raises:
        ValueError: If a name or a number is none.
        OSError: If the file cannot be read.

    Example:
        >>> read_hosts("node1:4,node2")
        [Host(name='node1', slots=4), Host(name='node2', slots=0)]
    """
    if os.path.isfile(text):
        with open(text, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
        return _merged(_host(" ".join(words)) for words in lines if words)
    if os.sep in text:
        raise ValueError(
            f"there is no file {text} with hosts: give the name of a file, or a list"
            f" such as node1:4,node2:4"
        )
    return _merged(_host(part.strip()) for part in text.split(","))


def allocated(environ: Mapping[str, str] = os.environ) -> list[Host]:
    """Returns the hosts that a batch system gave to this job; none outside a job.

    Args:
        environ: Environment variables.

    Raises:
        ValueError: If a variable cannot be understood.
        OSError: If the file of PBS cannot be read.

    Example:
        >>> job = {"SLURM_JOB_NODELIST": "a[09-11],b",
        ...        "SLURM_TASKS_PER_NODE": "2(x3),1"}
        >>> [str(host) for host in allocated(job)]
        ['a09:2', 'a10:2', 'a11:2', 'b:1']
    """
    names = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if names:
        hosts = list(itertools.islice(_expanded(names), _MOST_HOSTS))
        slots = _tasks(environ.get("SLURM_TASKS_PER_NODE", ""))
        if len(slots) != len(hosts):
            slots = [0] * len(hosts)
        return [Host(name, n) for name, n in zip(hosts, slots)]
    path = environ.get("PBS_NODEFILE")
    return read_hosts(path) if path else []


def with_slots(hosts: Sequence[Host], n_ranks: int) -> list[Host]:
    """Returns hosts that may run equally many ranks each, where no number is given.

    Example:
        >>> with_slots([Host("a"), Host("b")], n_ranks=3)
        [Host(name='a', slots=2), Host(name='b', slots=2)]
    """
    open_ = [host for host in hosts if not host.slots]
    left = max(1, n_ranks - sum(host.slots for host in hosts))
    each = -(-left // len(open_)) if open_ else 0
    return [host if host.slots else host._replace(slots=each) for host in hosts]


def _host(text: str) -> Host:
    """Returns the host of ``name``, ``name:4`` or ``name slots=4``."""
    name, _, number = re.sub(r"\s+slots\s*=\s*", ":", text).partition(":")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is no host: write a name, or name:4 for 4 ranks")
    if not number and ":" not in text:
        return Host(name)
    if not re.fullmatch("[1-9][0-9]{0,5}", number):
        raise ValueError(f"{name} cannot run {number!r} ranks: give a number from 1 on")
    return Host(name, int(number))


def _merged(hosts: Iterable[Host]) -> list[Host]:
    """Returns each host once; a host that is there several times runs as many ranks."""
    slots: dict[str, int] = {}
    lines: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + (host.slots or 1)
        lines[host.name] = lines.get(host.name, 0) + bool(host.slots) + 1
    if not slots:
        raise ValueError("there are no hosts: give one at least")
    # A single name without a number leaves it open.
    return [Host(name, n if lines[name] > 1 else 0) for name, n in slots.items()]


def _expanded(text: str) -> Iterator[str]:
    """Yields the names of a list of Slurm."""
    for part in _OF_SLURM.findall(text):
        # Names and numbers in brackets take turns.
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        choices = [
            [*_numbers(piece, text)] if i % 2 else [piece]
            for i, piece in enumerate(pieces)
        ]
        for words in itertools.product(*choices):
            yield _host("".join(words)).name


def _numbers(text: str, whole: str) -> Iterator[str]:
    """Yields the numbers of a list such as ``08-10,12``, with their zeros."""
    for each in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", each)
        if found is None:
            raise ValueError(f"{whole!r} does not list hosts, as node[1-3,7] does")
        first, last = found[1], found[2] or found[1]
        for number in range(int(first), min(int(last), int(first) + _MOST_HOSTS) + 1):
            yield f"{number:0{len(first)}}"


def _tasks(text: str) -> list[int]:
    """Returns the numbers of ``SLURM_TASKS_PER_NODE``, such as ``2(x3),1``."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(n) for n, times in found for _ in range(min(int(times or 1), 10**5))]
