"""The clusters that are up: a file for each, locked by its guardian while that lives.

A file without a lock is of a guardian that was killed, whose cluster is left over.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

FOLDER = Path("/run/emulated_hosts")
#: Seconds to wait for a lock.
PATIENCE = 0.5
NAME = re.compile(r"[a-z0-9_]{1,30}")


class HostEntry(NamedTuple):
    """A cluster that is up, or on its way up or down.

    Attributes:
        name: Name of the cluster.
        guardian: Process that will remove the cluster.
        owner: Process at whose end the cluster is removed; ``None`` if only on request.
    """

    name: str
    guardian: int
    owner: int | None


def file_of(name: str) -> Path:
    """Returns the file of a cluster.

    Raises:
        ValueError: If that is no name for one.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name: up to 30 of a to z, 0 to 9 and _")
    return FOLDER / f"{name}.json"


@contextmanager
def locked(name: str) -> Iterator[IO | None]:
    """Locks the file of a cluster; ``None`` if another process keeps it so."""
    FOLDER.mkdir(exist_ok=True)
    path, deadline = file_of(name), time.monotonic() + PATIENCE
    while True:
        with open(path, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A process that only reads the file has done so in a moment.
                if time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                yield None
                return
            # The process that had locked it may just have removed it.
            if not path.exists() or not os.path.samestat(
                path.stat(), os.fstat(file.fileno())
            ):
                continue
            yield file
            return


def write(file: IO, entry: HostEntry) -> None:
    """Writes who has locked a file."""
    file.truncate(0)
    file.write(json.dumps(entry._asdict()))
    file.flush()


def entries() -> tuple[list[HostEntry], list[str]]:
    """Returns the clusters that are up, and the names of those left over."""
    found, stale = [], []
    for path in sorted(FOLDER.glob("*.json")):
        entry = read(path.stem)
        if entry is not None:
            found.append(entry)
        else:
            stale.append(path.stem)
    return found, stale


def read(name: str) -> HostEntry | None:
    """Returns the entry of a cluster; ``None`` if it is not up."""
    try:
        with open(file_of(name)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return HostEntry(**json.loads(file.read()))
    except (FileNotFoundError, json.JSONDecodeError):
        # The latter just after it was locked: not up yet.
        return None
    return None
