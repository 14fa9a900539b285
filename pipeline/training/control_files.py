"""The files by which a supervised run gets orders and answers them.

They are in a directory that only the user can write to::

    lock             is locked by the supervisor while it lives
    run.json         supervisor -> all         process, ranks and hosts, the last end
    wishes.json      supervisor -> rank 0      number of snapshots to save, and the stop
    progress.json    rank 0 -> all             iteration, number of snapshots saved
    TOKEN.order      command -> supervisor     a word: save, stop, grow
    TOKEN.answer     supervisor -> command     a text

Each file has one writer, and appears when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar, get_type_hints

from chainer_compat.own_directory import own_directory
from divisible.files import write_json, written_aside

#: Environment variable with the directory, for the ranks of a supervised run.
VARIABLE = "DIVISIBLE_CONTROL"
#: Orders that a supervisor takes.
ORDERS = ("save", "stop", "grow")
_LOCK, _ORDER, _ANSWER = "lock", ".order", ".answer"
_LONGEST = 100_000
# Seconds that a run which ends waits for the readers of its last answers.
_SECONDS_TO_READ = 5.0
# Seconds that the directory of a killed supervisor stays at least.
_SECONDS_KEPT = 24 * 3600


class Run(NamedTuple):
    """The state of a run, by its supervisor.

    Attributes:
        process: Number of the supervisor's process.
        host: Host of the supervisor.
        script: Script and its arguments.
        ranks: Number of ranks and their hosts, as words.
        state: State of the run, as words.
        starts: Number of starts.
        restarts_left: Number of restarts that are left.
        last: Words for the last end; empty before there is one.
    """

    process: int
    host: str
    script: str
    ranks: str
    state: str
    starts: int
    restarts_left: int
    last: str = ""


class Wishes(NamedTuple):
    """The orders for rank 0.

    Attributes:
        start: Number of the start that they are for.
        saves: Number of snapshots that were ordered since this start.
        stop: Whether to stop with a snapshot.
    """

    start: int
    saves: int = 0
    stop: bool = False


class Progress(NamedTuple):
    """The state of the training, by rank 0.

    Attributes:
        start: Number of the start; see :class:`Wishes`.
        iteration: Number of finished iterations.
        epoch: Number of finished epochs, with a fraction.
        time: Seconds since 1970.
        saves: Number of ordered snapshots that were taken.
        words: Words about the newest of them; empty before there is one.
    """

    start: int
    iteration: int
    epoch: float
    time: float
    saves: int = 0
    words: str = ""


_FILES = {Run: "run.json", Wishes: "wishes.json", Progress: "progress.json"}
Content = TypeVar("Content", Run, Wishes, Progress)


def write(folder: Path, content: Run | Wishes | Progress) -> None:
    """Writes a file of a run.

    Raises:
        OSError: If it cannot be written.
    """
    write_json(folder / _FILES[type(content)], content._asdict())


def read(folder: Path, kind: type[Content]) -> Content | None:
    """Reads a file of a run.

    Returns:
        The content; ``None`` if there is no such file, or if it is another one.

    Raises:
        OSError: If the file cannot be read, though it is there.
    """
    try:
        with open(folder / _FILES[kind], encoding="utf-8") as file:
            found = kind(**json.loads(file.read(_LONGEST)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return None
    are_right = all(
        isinstance(getattr(found, name), (int, float) if each is float else each)
        for name, each in get_type_hints(kind).items()
    )
    return found if are_right else None


def forget(folder: Path, kind: type[Content]) -> None:
    """Removes a file of a run, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _FILES[kind]).unlink()


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Path]:
    """Makes a run's directory for a block, and locks it.

    Args:
        folder: The directory, an absolute path. Orders of an earlier run are removed.

    Yields:
        Path: The directory.

    Raises:
        ValueError: If another run has it.
        OSError: If it cannot be made, or other users could write to it.
    """
    folder = own_directory(folder)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _lock(descriptor):
            raise ValueError(
                f"{folder} belongs to a run that lives: give each run a directory of"
                f" its own by --control"
            )
        _clear(folder)
        try:
            yield folder
        finally:
            _let_read(folder)
            _clear(folder)
            _remove(folder)
    finally:
        os.close(descriptor)


def remove_if_dead(folder: Path) -> None:
    """Removes a run's directory, if its supervisor was killed a day ago or earlier."""
    with contextlib.suppress(OSError):
        is_old = time.time() - os.stat(folder).st_mtime > _SECONDS_KEPT
        if is_old and not is_live(folder):
            _clear(folder)
            _remove(folder)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / _LOCK).unlink()
        folder.rmdir()


def _let_read(folder: Path) -> None:
    """Waits shortly until answers were read: a run may end with the last one."""
    deadline = time.monotonic() + _SECONDS_TO_READ
    while any(folder.glob(f"*{_ANSWER}")) and time.monotonic() < deadline:
        time.sleep(0.05)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in _FILES.values() or path.suffix in (_ORDER, _ANSWER):
            with contextlib.suppress(OSError):
                path.unlink()


def is_live(folder: Path) -> bool:
    """Returns whether a supervisor has a run's directory."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Locks a file until it is closed; returns whether no other process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Order(NamedTuple):
    """An order to a run.

    Attributes:
        token: Name of the order, which no other order has.
        word: One of `ORDERS`.
    """

    token: str
    word: str


def give(folder: Path, word: str) -> Order:
    """Writes an order.

    Raises:
        OSError: If it cannot be written.
    """
    order = Order(secrets.token_hex(8), word)
    with written_aside(folder / f"{order.token}{_ORDER}") as aside:
        Path(aside).write_text(word, encoding="utf-8")
    return order


def take(folder: Path) -> list[Order]:
    """Returns the orders that were written, the oldest first, and removes them."""
    found = []
    with contextlib.suppress(OSError):
        paths = [path for path in folder.iterdir() if path.suffix == _ORDER]
        for path in sorted(paths, key=lambda path: path.stat().st_mtime):
            word = path.read_text(encoding="utf-8", errors="replace")[:_LONGEST]
            path.unlink()
            found.append(Order(path.stem, word))
    return found


def answer(folder: Path, order: Order, text: str) -> None:
    """Writes the answer to an order.

    Raises:
        OSError: If it cannot be written.
    """
    with written_aside(folder / f"{order.token}{_ANSWER}") as aside:
        Path(aside).write_text(text, encoding="utf-8")


def answered(folder: Path, order: Order, seconds: float) -> str | None:
    """Waits for the answer to an order.

    Args:
        folder: The run's directory.
        order: The order.
        seconds: Longest time to wait.

    Returns:
        The text; ``None`` if none came, or if the run has ended.
    """
    path, deadline = folder / f"{order.token}{_ANSWER}", time.monotonic() + seconds
    lives = True
    while lives and time.monotonic() < deadline:
        # The run may answer and end between two looks.
        lives = is_live(folder)
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8")
            path.unlink()
            return text
        time.sleep(0.1)
    return None
