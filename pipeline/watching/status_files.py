"""The files in which the ranks of a run write their state.

A file is written aside and renamed, so a reader gets the old state or the new one.
Files of an earlier start of the same run, with other ranks, may remain. All ranks of a
start know the name of their job, which tells them apart.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from divisible.files import written_aside
from divisible.records import (
    MOST_RANKS,
    finite_number,
    from_fields,
    plain_integer,
    plain_number,
    plain_text,
    reading_json,
    shown,
    take_kind,
)
from divisible.terminal_text import printable
from pipeline.watching.step_seconds import StepSeconds

#: The folder within that of a run.
FOLDER = "ranks"
_KIND, _VERSION = "rank status", 1
_NAME = re.compile(r"rank-([0-9]{1,7})\.json")
_MESSAGE = re.compile(r"([0-9]{1,7})>([0-9]{1,7}) ")
_REMEDY = "Start the run again, which writes another file"


class Messages(NamedTuple):
    """The times of the messages of a rank in one minibatch.

    Messages have names such as ``0>1 0F3``: the ranks, and the action that sends.

    Attributes:
        step: Number of the minibatch.
        sent: Seconds since 1970 when sends began, by message.
        received: Seconds since 1970 when receives began and ended, by message.
    """

    step: int
    sent: Mapping[str, float]
    received: Mapping[str, Sequence[float]]

    @property
    def sources(self) -> set[int]:
        """The ranks whose messages were received."""
        return {int(name.partition(">")[0]) for name in self.received}


@dataclass
class RankStatus:
    """The state of a rank.

    Attributes:
        job: Name of the start of all ranks.
        rank: Number of the rank among all.
        n_ranks: Number of all ranks.
        replica: Number of the rank's replica.
        host: Name of its host.
        process: Number of its process there.
        time: Seconds since 1970 when this was written.
        n_steps: Number of minibatches that the pipeline has trained.
        stages: Layers of the rank's stages, half-open ranges by the stage's number.
        state: ``'runs'``, or the reason of the end, such as ``'finished'``.
        epoch: Number of epochs so far, with a fraction; ``None`` if not known.
        share: Share of the training that is done; ``None`` if not known.
        seconds_left: Seconds until the end; ``None`` if not known.
        steps_per_second: Minibatches a second.
        samples_per_second: Samples a second, of all replicas.
        values: Losses and other numbers of the last minibatch but one; ``None`` stands
            for infinity and NaN.
        n_counted: Number of the newest minibatches that ``now`` is of.
        now: Medians of the newest minibatches; ``None`` before there are some.
        usual: Medians of minibatches before; ``None`` before there are enough.
        slowness: How many times as long as usual the rank computes, and how long the
            minibatches are by its time between steps; see :meth:`.History.slowness`.
        longer: Names in ``slowness`` of what takes longer than in nine of ten usual
            minibatches.
        memory: The most bytes that the process has used.
        planned_seconds: Seconds that the rank computes in a step by the plan; ``None``
            without a prediction.
        planned_step: Seconds of a step by the plan.
        planned_bubble: Share of a step by the plan that ranks wait.
        flight_record: The file of its flight record on its host; empty without one.
        messages: Times of the messages of some minibatches.
        slow: Sentences about slow ranks; only of rank 0, which reads the files of all.
        between_files: Seconds after which it writes the next file, at least.
    """

    job: str
    rank: int
    n_ranks: int
    replica: int
    host: str
    process: int
    time: float
    n_steps: int
    stages: Mapping[str, Sequence[int]]
    state: str = "runs"
    epoch: float | None = None
    share: float | None = None
    seconds_left: float | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    n_counted: int = 0
    now: StepSeconds | None = None
    usual: StepSeconds | None = None
    slowness: Mapping[str, float] = field(default_factory=dict)
    longer: Sequence[str] = ()
    memory: float = 0.0
    planned_seconds: float | None = None
    planned_step: float | None = None
    planned_bubble: float | None = None
    flight_record: str = ""
    messages: Sequence[Messages] = ()
    slow: Sequence[str] = ()
    between_files: float = 0.0

    def __post_init__(self) -> None:
        for name in ("job", "host", "state", "flight_record"):
            setattr(self, name, printable(plain_text(name, getattr(self, name))))
        for name in ("rank", "n_ranks", "replica", "process", "n_steps", "n_counted"):
            value = plain_integer(name, getattr(self, name))
            setattr(self, name, plain_number(name, value, _REMEDY))
        if not 1 <= self.n_ranks <= MOST_RANKS or self.rank >= self.n_ranks:
            raise ValueError(f"it is of rank {self.rank} of {self.n_ranks}")
        # A script may count epochs in NumPy's numbers, which JSON cannot have.
        for name in ("time", "memory", "between_files", *_OPTIONAL):
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                setattr(self, name, plain_number(name, value, _REMEDY))
        for name in ("now", "usual"):
            setattr(self, name, _step_seconds(name, getattr(self, name)))
        known = {
            k: v for k, v in _dictionary("values", self.values).items() if v is not None
        }
        self.values = {
            **dict.fromkeys(map(printable, self.values)),
            **_numbers("values", known),
        }
        self.slowness = _numbers("slowness", self.slowness)
        self.longer = [plain_text("longer", e) for e in _list("longer", self.longer)]
        self.messages = [_messages(each) for each in _list("messages", self.messages)]
        self.stages = {
            printable(number): [plain_integer("stages", p) for p in _pair(layers)]
            for number, layers in _dictionary("stages", self.stages).items()
        }
        texts = _list("slow", self.slow)
        self.slow = [printable(plain_text("slow", text)) for text in texts]

    def write(self, folder: Path) -> None:
        """Writes the file of this rank.

        Args:
            folder (Path): Folder of the run's status files, which exists.

        Raises:
            OSError: If it cannot be written.
        """
        content = {"divisible": _KIND, "version": _VERSION, **vars(self)}
        for name in ("now", "usual"):
            row = getattr(self, name)
            content[name] = None if row is None else row._asdict()
        content["messages"] = [each._asdict() for each in self.messages]
        path = folder / f"rank-{self.rank}.json"
        # One call of the encoder in C is several times as fast as write_json.
        text = json.dumps(content, allow_nan=False)
        with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
            file.write(text)

    @classmethod
    def load(cls, path: str | os.PathLike) -> RankStatus:
        """Reads what :meth:`write` has written.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is something else, or of another version.
        """
        with reading_json(path, "the status of a rank") as content:
            take_kind(content, _KIND)
            version = content.pop("version", None)
            if version != _VERSION:
                raise ValueError(
                    f"it has version {shown(version)}, and this divisible reads version"
                    f" {_VERSION}: use the one that wrote it"
                )
            return from_fields(cls, content)


_OPTIONAL = (
    "epoch",
    "share",
    "seconds_left",
    "steps_per_second",
    "samples_per_second",
    "planned_seconds",
    "planned_step",
    "planned_bubble",
)


def _step_seconds(name: str, row: Any) -> StepSeconds | None:
    if row is None:
        return None
    if isinstance(row, StepSeconds):
        row = row._asdict()
    row = _numbers(name, row)
    if set(row) != set(StepSeconds._fields):
        raise ValueError(f"{name} must have {', '.join(StepSeconds._fields)}")
    return StepSeconds(**row)


def _numbers(name: str, values: Any) -> dict[str, float]:
    return {
        printable(key): finite_number(f"{name}, {shown(key)},", value)
        for key, value in _dictionary(name, values).items()
    }


def _dictionary(name: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} must have names, not {shown(values)}")
    return values


def _list(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a list, not {shown(values)}")
    return values


def _messages(row: Any) -> Messages:
    """Returns the messages of a minibatch, each field of which is checked."""
    if isinstance(row, Messages):
        return row
    if not isinstance(row, Mapping) or set(row) != set(Messages._fields):
        raise ValueError(f"messages must have {', '.join(Messages._fields)}")
    received = _dictionary("received", row["received"])
    for name in (*_dictionary("sent", row["sent"]), *received):
        if _MESSAGE.match(name) is None:
            raise ValueError(f"{shown(name)} is no message, such as '0>1 0F0'")
    return Messages(
        plain_integer("step", row["step"]),
        _numbers("sent", row["sent"]),
        {
            name: [finite_number("received", each) for each in _pair(times)]
            for name, times in received.items()
        },
    )


def _pair(layers: Any) -> Sequence[Any]:
    if not isinstance(layers, Sequence) or len(layers) != 2:
        raise ValueError(f"there must be a start and an end, not {shown(layers)}")
    return layers


class Statuses(NamedTuple):
    """The states of the ranks of a run.

    Attributes:
        ranks: The states by rank, of the newest job.
        faults: Sentences about files that cannot be read.
    """

    ranks: list[RankStatus]
    faults: list[str]

    @property
    def missing(self) -> list[int]:
        """The ranks without a state here."""
        if not self.ranks:
            return []
        return sorted({*range(self.ranks[0].n_ranks)} - {s.rank for s in self.ranks})


def read_statuses(folder: Path, job: str | None = None) -> Statuses:
    """Reads the states of all ranks.

    Args:
        folder (Path): Folder of the run's status files.
        job (str or None): Name of the start; by default the newest.

    Raises:
        OSError: If the folder cannot be read.
    """
    found, faults = [], []
    for name in sorted(os.listdir(folder)):
        if _NAME.fullmatch(name) is None:
            continue
        try:
            found.append(RankStatus.load(folder / name))
        except FileNotFoundError:
            # A new start has removed it.
            continue
        except (OSError, ValueError) as error:
            faults.append(printable(str(error)))
    if job is None and found:
        job = max(found, key=lambda status: status.time).job
    ranks = sorted(
        (status for status in found if status.job == job),
        key=lambda status: status.rank,
    )
    return Statuses(ranks, faults)


def make_folder(run: str | os.PathLike) -> Path:
    """Makes the folder of the status files of a run, and returns it.

    Raises:
        OSError: If it cannot be made.
    """
    folder = Path(run, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_others(folder: Path, n_ranks: int) -> None:
    """Removes files of ranks that a start with more ranks has left."""
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) >= n_ranks:
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
