"""Owners of what lies beside snapshots: which of it a run that is dead has left.

Several runs may save into one directory. So what a process makes beside a snapshot has
a token in its name, which says who it is::

    iter_10.6f1c0a2b9d3e 00012f 0000a1b2c3 9f8e7d6c.partial      (without the spaces)
            machine      pid    its start  at random

A process of this machine lives or does not. Of other machines nobody here knows more
than what changes, by the clock of the file system: that of a machine may be wrong.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import secrets
import socket
import tempfile
from pathlib import Path

from pipeline.snapshots.names import parts

# For so long a run on another machine may leave unchanged what it writes.
_SECONDS_UNCHANGED = 3600
# Tokens of this process that are in use.
_in_use: set[str] = set()


def new_token() -> str:
    """Returns a token of this process."""
    return _process() + secrets.token_hex(4)


def use(token: str) -> None:
    """Keeps what has a token of this process from being taken for left over."""
    _in_use.add(token)


def release(token: str) -> None:
    """Ends what :func:`use` began."""
    _in_use.discard(token)


def is_left_over(path: Path) -> bool:
    """Says whether nobody writes what lies beside a snapshot, or will any more.

    That is known of what a process of this machine has made. Anything else counts as
    left over when nothing in it has changed for an hour; and what has no token, since
    no run makes such.
    """
    token = parts(path.name)[1]
    if token is None:
        return True
    if is_of_this_process(token):
        return token not in _in_use
    is_alive = lives(token)
    if is_alive is None:
        return _now_in(path.parent) - last_change(path) > _SECONDS_UNCHANGED
    return not is_alive


def is_of_this_process(token: str) -> bool:
    """Says whether a token was made here."""
    return token.startswith(_process())


def lives(token: str) -> bool | None:
    """Says whether the process that made a token lives; ``None`` if nobody can tell."""
    machine, pid, start = token[:12], int(token[12:18], 16), int(token[18:28], 16)
    if machine != _machine() or not start:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It is another user's.
        pass
    return _start(pid) in (start, None)


def last_change(path: Path) -> float:
    """Returns when a directory, or something in it, was changed; in doubt just now."""
    try:
        times = [os.lstat(path).st_mtime]
        if path.is_dir() and not path.is_symlink():
            with os.scandir(path) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        times.append(entry.stat(follow_symlinks=False).st_mtime)
        return max(times)
    except OSError:
        return math.inf


def _now_in(directory: Path) -> float:
    """Returns the time by the clock of a file system; if it does not say, long ago."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return -math.inf


def _process() -> str:
    return f"{_machine()}{os.getpid():06x}{_start(os.getpid()) or 0:010x}"


@functools.cache
def _machine() -> str:
    """Returns what no other machine has, nor another container on this one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        numbers = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return secrets.token_hex(6)
    # Copies of a virtual machine may have the same number of the boot.
    whole = f"{boot} {numbers} {socket.gethostname()}"
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def _start(pid: int) -> int | None:
    """Returns when a process began, in ticks since the boot; 0 if it has ended.

    ``None`` if the system does not say.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(fields[18])
