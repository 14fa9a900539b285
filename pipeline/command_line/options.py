"""Options that the commands of ``divisible`` share, and parsers of their values."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path
from typing import Any, Callable

import click
import numpy as np

from divisible.files import why_not
from divisible.planning.disk import Disk
from divisible.planning.profile import Profile
from divisible.planning.units import parse_rate, parse_seconds
from divisible.schedules.actions import ScheduleError
from divisible.schedules.schedule import Schedule
from divisible.schedules.schedule_files import name_or_file
from divisible.terminal_text import printable
from pipeline.command_line import console
from pipeline.snapshots.errors import SnapshotError


class Parsed(click.ParamType):
    """A value that a function parses; its ValueError becomes a usage error.

    Args:
        name: Name of the value in the help.
        parse: Returns the value of a text, or raises ValueError.
        several: Whether there may be several values, with commas between.
    """

    def __init__(
        self, name: str, parse: Callable[[str], Any], several: bool = False
    ) -> None:
        self.name = name
        self._parse = parse
        self._several = several

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Parses the argument; a default that is a number stays as it is."""
        if not isinstance(value, str):
            return value
        try:
            if not self._several:
                return self._parse(value)
            values = [self._parse(part) for part in value.split(",")]
            return values[0] if len(values) == 1 else values
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Loaded(click.Path):
    """An object loaded from a file; ValueError and OSError become usage errors.

    Args:
        load: Loads the file of a path, or raises ValueError or OSError.
        newest: Pattern of names in a folder, of which the newest file that can be
            loaded is taken; ``None`` to refuse folders.
    """

    def __init__(self, load: Callable[[str], Any], newest: str | None = None) -> None:
        super().__init__(exists=True, dir_okay=newest is not None)
        self._load, self._newest = load, newest

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Loads the file."""
        path = super().convert(value, param, ctx)
        if os.path.isdir(path):
            return self._load_newest(path, param, ctx)
        try:
            with console.plain_warnings():
                return self._load(path)
        except (OSError, ValueError) as error:
            self.fail(printable(str(error), keeps_lines=True), param, ctx)

    def _load_newest(self, folder: str, param: Any, ctx: Any) -> Any:
        """Loads the newest file in a folder, and prints its name."""
        ages = {}
        for path in Path(folder).glob(self._newest):
            # Another process may have removed it. A pipe might be read for ever.
            with contextlib.suppress(OSError):
                if path.is_file():
                    ages[path] = path.stat().st_mtime
        for path in sorted(ages, key=ages.get, reverse=True):
            # Other files may have such names as well.
            with contextlib.suppress(OSError, ValueError), console.plain_warnings():
                loaded = self._load(str(path))
                console.say(str(path))
                return loaded
        where = printable(f"{folder} has no file {self._newest} that can be read here")
        self.fail(f"{where}: name the file, or the folder it is in", param, ctx)
        return None


class NamedSchedule(click.ParamType):
    """A schedule: a name of the catalogue as text, or the schedule in a file."""

    name = "schedule"

    def convert(self, value: Any, param: Any, ctx: Any) -> str | Schedule:
        """Reads the file, unless the text is a name."""
        if isinstance(value, Schedule):
            return value
        try:
            return name_or_file(value)
        except (OSError, ScheduleError) as error:
            self.fail(printable(str(error), keeps_lines=True), param, ctx)


def shape(text: str) -> tuple[tuple[int, ...], str]:
    """Parses the shape of a sample and its dtype, such as ``3x224x224:float32``."""
    match = re.fullmatch(r"(\d+(?:x\d+)*)(?::(\w+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a shape, such as 3x224x224 or 35:int32")
    try:
        dtype = np.dtype(match[2] or "float32").name
    except TypeError:
        raise ValueError(f"{match[2]!r} is not a dtype, such as float32") from None
    return tuple(map(int, match[1].split("x"))), dtype


def positive(text: str) -> int:
    """Parses a positive integer."""
    if not re.fullmatch("[0-9]{1,18}", text.strip()):
        raise ValueError(f"{text!r} is not a positive integer of at most 18 digits")
    number = int(text)
    if number < 1:
        raise ValueError(f"{number} is not positive")
    return number


def positives(text: str) -> list[int]:
    """Parses positive integers with commas between."""
    return [positive(part) for part in text.split(",")]


def speaking(command: Callable) -> Callable:
    """Turns errors about the user's input into messages without a traceback."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            command(**arguments)
        except (
            ImportError,
            MemoryError,
            OSError,
            OverflowError,
            SnapshotError,
            ValueError,
        ) as error:
            message = str(error) or type(error).__name__
            if isinstance(error, OSError) and error.filename:
                message = f"{error.filename}: {why_not(error, error.filename)}"
            message = printable(message, keeps_lines=True)
            raise click.ClickException(message) from error

    return run


_machine_options = (
    click.option(
        "--bandwidth",
        type=Parsed("rate,...", parse_rate, several=True),
        help="Bandwidth of a link, such as 1Gbit/s or 100MB/s: one value for all, or"
        " one for each pair of neighbouring ranks.  [default: infinite]",
    ),
    click.option(
        "--latency",
        type=Parsed("time,...", parse_seconds, several=True),
        help="Latency of a message, such as 50us: one value for all, or one for each"
        " pair.  [default: 0]",
    ),
    click.option(
        "--overlap/--no-overlap",
        default=None,
        help="Whether messages travel while ranks compute.  [default: overlap]",
    ),
    click.option(
        "--speeds",
        type=Parsed("number,...", float, several=True),
        help="Speeds of the ranks, relative to the machine of the profile."
        "  [default: 1]",
    ),
    click.option(
        "--disk",
        type=Parsed("read,write", parse_rate, several=True),
        help="Disk of a rank, such as 2GB/s,500MB/s, for what does not fit in memory.",
    ),
)


def machine(command: Callable) -> Callable:
    """Gives a command the options of a machine: ``links``, ``speeds``, ``disk``.

    ``links`` has the attributes of a :class:`~divisible.Network` that were given.
    """

    @speaking
    @functools.wraps(command)
    def run(
        bandwidth: Any, latency: Any, overlap: Any, disk: Any, **arguments: Any
    ) -> None:
        if disk is not None:
            rates = np.broadcast_to(disk, 2) if np.ndim(disk) == 0 else disk
            if len(rates) != 2:
                raise ValueError(f"--disk has {len(rates)} rates: give read,write")
            disk = Disk(*map(float, rates))
        links = {"bandwidth": bandwidth, "latency": latency, "overlap": overlap}
        links = {name: value for name, value in links.items() if value is not None}
        command(links=links, disk=disk, **arguments)

    for option in reversed(_machine_options):
        run = option(run)
    return run


def profiles(required: bool = True) -> Callable:
    """Returns the argument that names profiles.

    Args:
        required: Whether a command needs profiles; otherwise it finds them in a plan.
    """
    return click.argument(
        "profiles",
        metavar="PROFILE..." if required else "[PROFILE]...",
        nargs=-1,
        required=required,
        type=Loaded(Profile.load),
    )


#: Types of one positive number, and of several with commas between.
NUMBER = Parsed("number", positive)
NUMBERS = Parsed("number,...", positives)


def batch(default: str) -> Callable:
    """Returns the option for the samples of a minibatch.

    Args:
        default: Text in its help about the number of samples without the option.
    """
    return click.option(
        "--batch",
        type=Parsed("samples", positive),
        help=f"Samples of the minibatch.  [default: {default}]",
    )


def inputs(required: bool) -> Callable:
    """Returns the option for the shapes of a model's inputs: ``inputs``.

    Args:
        required: Whether a command needs it.
    """
    return click.option(
        "--input",
        "inputs",
        type=Parsed("shape", shape),
        multiple=True,
        required=required,
        help="Shape of a sample, such as 3x224x224, or 35:int32 with a dtype. Give it"
        " once for each input of the model.",
    )


optimizer = click.option(
    "--optimizer", help="Class in chainer.optimizers, such as MomentumSGD."
)

plot = click.option(
    "--plot", type=click.Path(), help="Draw it to this file (.png, .svg, .pdf)."
)


def output(default: str) -> Callable:
    """Returns the option for the output file."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False),
        default=default,
        show_default=True,
        help="File to write.",
    )
