"""Schedules in files, and names that may be of such files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from divisible.records import shown
from divisible.schedules.actions import ScheduleError
from divisible.schedules.catalogue import NAMES
from divisible.schedules.schedule import Schedule


class UnknownScheduleError(ScheduleError):
    """A text that is neither a name of the catalogue nor a file."""


def read_schedule(path: str | os.PathLike) -> Schedule:
    """Reads a schedule from a file of text, and proves it.

    Args:
        path: A file with the text that ``print(schedule)``, ``divisible schedule draw``
            and ``divisible explore`` write.

    Returns:
        The schedule.

    Raises:
        OSError: If the file cannot be read.
        ScheduleError: If the file has no schedule, or one that cannot run; the message
            names the file, and shows the grid with the fault.

    Example:
        >>> import tempfile
        >>> from divisible.schedules import gpipe
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "mine.txt").write_text(str(gpipe(2, 4)))
        ...     read_schedule(Path(folder, "mine.txt")) == gpipe(2, 4)
        True
    """
    try:
        schedule = Schedule.parse(Path(path).read_text(encoding="utf-8"))
        schedule.validate()
    except (ScheduleError, UnicodeDecodeError) as error:
        raise ScheduleError(f"{os.fspath(path)}: {error}") from error
    return schedule


def name_or_file(text: str) -> str | Schedule:
    """Returns a name of the catalogue as it is, and reads the file of another name.

    Args:
        text: One of ``divisible.schedules.NAMES``, or the path of a file.

    Raises:
        OSError: If the file cannot be read.
        ScheduleError: If the file has no schedule that can run.
        UnknownScheduleError: If the text is neither.

    Example:
        >>> name_or_file("zb_v")
        'zb_v'
    """
    if text in NAMES:
        return text
    if not os.path.isfile(text):
        raise UnknownScheduleError(
            f"{shown(text)} is neither a file nor a schedule: choose one of"
            f" {', '.join(NAMES)}"
        )
    return read_schedule(text)


def schedule_argument(text: str) -> str | Schedule:
    """Reads the argument of an option of `argparse`, as its ``type``.

    Args:
        text: See :func:`name_or_file`.

    Raises:
        argparse.ArgumentTypeError: If the text is neither a name nor a file, or the
            file has no schedule that can run. The message says why.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("--schedule", type=schedule_argument)
        >>> parser.parse_args(["--schedule", "gpipe"]).schedule
        'gpipe'
    """
    try:
        return name_or_file(text)
    except (OSError, ScheduleError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
