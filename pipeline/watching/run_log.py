"""The log of a run, which Chainer's ``LogReport`` writes, as curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from divisible.records import shown
from divisible.terminal_text import printable

#: Names of the log in the folder of a run.
NAME = "log"
# Entries that are no curves but the axis, or clocks.
_AXES = ("iteration", "epoch", "elapsed_time")
# Beginnings of names whose values come from the pipeline.
_OF_PIPELINE = "pipeline/"


class Curve(NamedTuple):
    """A value over the minibatches.

    Attributes:
        name: Name of the value in the log.
        steps: Numbers of minibatches, in their order.
        values: The value after each of them; infinity and NaN are left out.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]


def read_run_log(path: str | os.PathLike) -> dict[str, list[Curve]]:
    """Returns the curves of a log, by what they show.

    Args:
        path: A file of JSON: a list with a dictionary for each entry.

    Returns:
        Curves that are drawn into one picture, by its title. Values that differ only in
        the beginnings of their names are in one picture: ``main/loss`` and
        ``validation/main/loss``.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no such log.
    """
    with open(path, encoding="utf-8") as file:
        try:
            entries = json.load(file)
        except (RecursionError, ValueError) as error:
            raise ValueError(
                f"{os.fspath(path)} is not a log of LogReport: {error}"
            ) from None
    if not isinstance(entries, list):
        raise ValueError(
            f"{os.fspath(path)} is not a log of LogReport: it holds {shown(entries)}"
        )
    points: dict[str, list[tuple[float, float]]] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise ValueError(
                f"{os.fspath(path)} is not a log of LogReport: it holds {shown(entry)}"
            )
        step = entry.get("iteration", place)
        for name, value in entry.items():
            if name not in _AXES and _is_finite(value) and _is_finite(step):
                points.setdefault(printable(name), []).append((step, value))
    pictures: dict[str, list[Curve]] = {}
    for name, pairs in points.items():
        steps, values = zip(*pairs)
        pictures.setdefault(_title(name), []).append(Curve(name, steps, values))
    return pictures


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < 2**1000 and math.isfinite(value)


def _title(name: str) -> str:
    """Returns the title of a value's picture.

    Example:
        >>> _title("validation/main/loss"), _title("pipeline/bubble")
        ('loss', 'pipeline/bubble')
    """
    return name if name.startswith(_OF_PIPELINE) else name.rpartition("/")[2]
