"""Plans, profiles, timelines and logs from files. Errors name the file and the field.

::

    reading_json     opens a file; errors in its block are errors of the file
    read_lines       reads a log, and leaves broken lines out
      from_fields    makes an object of the fields of a dictionary
        plain_...    check one field each, also of objects that Python code makes
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from divisible.terminal_text import printable
from divisible.user_warnings import warn_user

T = TypeVar("T")
#: Upper limit of times, sizes and numbers. Sums of smaller ones do not overflow.
LIMIT = 2**63
#: Upper limit of ranks. Each costs memory and time even without any event.
MOST_RANKS = 2**16


@contextlib.contextmanager
def reading_json(path: str | os.PathLike, kind: str) -> Iterator[dict[str, Any]]:
    """Opens a block that makes an object of the dictionary in a file.

    Args:
        path: A file of JSON.
        kind: Kind of the content for errors, such as ``'a plan'``.

    Yields:
        The dictionary.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file holds something else, or the block finds a fault in it.
            The message is one line, with the path.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict):
            raise ValueError(f"it holds {shown(content)} instead of fields with names")
        yield content
    except OSError as error:
        if error.filename is not None:
            raise
        # An error while reading has no file name.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    except RecursionError:
        raise ValueError(
            f"{os.fspath(path)} is not {kind}: it is nested too deeply"
        ) from None
    except (TypeError, ValueError) as error:
        line = printable(" ".join(str(error).split()))
        raise ValueError(f"{os.fspath(path)} is not {kind}: {line}") from error


def take_kind(content: dict[str, Any], kind: str, default: str | None = None) -> None:
    """Removes the field with the kind of a file, after checking it.

    Args:
        content: The fields of the file.
        kind: The expected kind, such as ``'profile'``.
        default: The kind of a file without this field.

    Raises:
        ValueError: If the file is of another kind.

    Example:
        >>> content = {"divisible": "plan", "cuts": [0, 3]}
        >>> take_kind(content, "plan")
        >>> content
        {'cuts': [0, 3]}
    """
    if content.pop("divisible", default) != kind:
        raise ValueError("it is another kind of file")


def read_lines(
    path: str | os.PathLike, kind: str, make: Callable[[dict[str, Any]], T]
) -> list[T]:
    """Returns an object for each line of a log, without the broken lines.

    A full disk, or the end of a process, may cut off a line. The other lines are good.
    A warning has the number of lines that are left out.

    Args:
        path: A file with JSON in each line; empty lines do not count.
        kind: The noun for a line in errors, such as ``'a check'``.
        make: Function that makes an object of the dictionary in a line, or raises
            :class:`TypeError` or :class:`ValueError`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If there are lines, and all are broken.
    """
    made, broken, first = [], 0, ""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                content = json.loads(line)
                if not isinstance(content, dict):
                    raise ValueError(f"it holds {shown(content)}")
                made.append(make(content))
            except (RecursionError, TypeError, ValueError) as error:
                broken += 1
                words = " ".join(str(error).split())
                first = first or f"line {number} is not {kind}: {printable(words)}"
    if broken and not made:
        raise ValueError(f"{os.fspath(path)}: {first}")
    if broken:
        warn_user(
            f"{os.fspath(path)}: {broken} of {broken + len(made)} lines are left out;"
            f" {first}",
        )
    return made


def from_fields(cls: type[T], row: Any, what: str = "") -> T:
    """Makes an object of a dataclass from a dictionary with its fields.

    Args:
        cls: The dataclass.
        row: The fields by name. Fields with a default may be left out.
        what: Place of the row for errors, such as ``'layer 3'``.

    Raises:
        ValueError: If a field is missing, unknown, or refused by the class.
    """
    before = f"{what}: " if what else ""
    if not isinstance(row, dict):
        raise ValueError(f"{before}{shown(row)} has no fields")
    fields = dataclasses.fields(cls)
    unknown = set(row) - {field.name for field in fields}
    if unknown:
        raise ValueError(f"{before}there is no field {shown(min(unknown))}")
    for field in fields:
        is_needed = field.default is field.default_factory is dataclasses.MISSING
        if is_needed and field.name not in row:
            raise ValueError(f"{before}{field.name} is missing")
    try:
        return cls(**row)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{before}{error}") from error


def plain_number(what: str, value: Any, remedy: str) -> float:
    """Returns a number as Python's own, because JSON cannot have NumPy's.

    Args:
        what: Name of the number for errors.
        value: The number.
        remedy: The cure for a wrong number, as a sentence without its full stop.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is negative, infinite, NaN, or too large.
    """
    if isinstance(value, (np.generic, np.ndarray)) and value.size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {shown(value)}: it must be a number. {remedy}.")
    if not (0 <= value < LIMIT):
        raise ValueError(
            f"{what} is {shown(value)}: it must be finite, not negative and below"
            f" 2**63. {remedy}."
        )
    return value


def finite_number(what: str, value: Any) -> float:
    """Returns a number of either sign.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is infinite, NaN or beyond 2**63, in either direction.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number, not {shown(value)}")
    if not -LIMIT < value < LIMIT:
        raise ValueError(f"{what} must be finite, not {shown(value)}")
    return value


def plain_integer(what: str, value: Any) -> int:
    """Returns an integer as Python's own.

    Args:
        what: Name of the integer for errors.
        value: The integer.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is beyond 2**63, in either direction.
    """
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what} must be an integer, not {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {shown(value)}") from None
    if not -LIMIT < number < LIMIT:
        raise ValueError(f"{what} must be below 2**63, not {shown(number)}")
    return number


def plain_text(what: str, value: Any) -> str:
    """Returns a text, after checking that it is one.

    Raises:
        TypeError: If it is not a text.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, not {shown(value)}")
    return value


def listed(name: str, values: Any) -> Any:
    """Returns the values of a list of any kind, and refuses anything else.

    Texts and dictionaries are not lists.
    """
    if isinstance(values, (str, bytes, dict)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, not {shown(values)}")
    return values


def shown(value: Any) -> str:
    """Returns a value as text for an error, shortened if it is long or deep.

    Example:
        >>> shown(range(3)), shown([list(range(100))]), shown(np.ones(2))
        ('range(0, 3)', '[[0, 1, 2, 3, 4, 5, ...]]', '[1.0, 1.0]')
    """
    return reprlib.repr(_plain(value))


def _plain(value: Any, depth: int = 6) -> Any:
    """Returns a value without NumPy's types, which show as ``np.float64(1.0)``.

    Lists are cut to the part that is shown: seven elements, and some levels.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value[tuple(slice(7) for _ in value.shape)].tolist()
    if type(value) in (list, tuple) and depth:
        return type(value)(_plain(each, depth - 1) for each in value[:7])
    return value
