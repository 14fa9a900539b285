"""The last actions, messages and waits of a rank, in memory that outlives the rank.

A record is a header, and a ring of entries of equal size. Its memory may belong to a
file (:mod:`divisible.communication.flight_files`). The kernel then keeps its content,
whatever ends the process::

    header            entry 1025   entry 2   entry 3   ...   entry 1024
    version, rank     newest       oldest

Writing an entry takes about a microsecond, no lasting memory, and no system call. An
entry that the end of the process cut off has different numbers at its two ends. It is
left out when the record is read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from divisible.terminal_text import printable

#: Kinds of entries: a call of the pipeline, an action of the schedule, a message sent
#: or received, a wait that takes long, a failure.
CALL, ACTION, SEND, RECEIVE, WAIT, FAILURE = range(6)
#: Whether an entry is a beginning or an end.
BEGIN, END = range(2)
#: Values in place of a rank: no rank, or all ranks.
NOBODY, EVERYBODY = -1, -2

N_ENTRIES = 1024
_VERSION = 2
_MAGIC = b"divisible flight record "
_HEADER_BYTES = 512
# Number, time, bytes, pipeline, call, peer, kind, phase, text, and the number again.
_ENTRY = struct.Struct("<QdqIIiBB50sQ")
# The number of finished steps, and of those that the newest snapshot has, at the end of
# the header.
_COUNT = struct.Struct("<Q")
_SAVED_AT = _HEADER_BYTES - _COUNT.size
_STEPS_AT = _SAVED_AT - _COUNT.size
# Bounds of the numbers in a file. MPI numbers ranks in 32 bits, and systems number
# processes so. A later time has no date with a year of four digits.
_MOST_RANKS = _MOST_PROCESSES = 2**31 - 1
_LATEST = 253_402_300_799
_LONGEST_HOST = 64


class FlightEntry(NamedTuple):
    """One line of a flight record.

    Attributes:
        number (int): Position of the entry among all of the rank, from 1.
        time (float): Seconds since 1970.
        n_bytes (int): Bytes of a message's arrays. At the beginning of a call, the
            largest memory that the process has held, in bytes.
        pipeline (int): A number for the pipeline, the same on all of its ranks; 0
            before there is one.
        call (int): The number of the pipeline's call.
        peer (int): The rank at the other end, `NOBODY` or `EVERYBODY`.
        kind (int): `CALL`, `ACTION`, `SEND`, `RECEIVE`, `WAIT` or `FAILURE`.
        phase (int): `BEGIN` or `END`.
        text (str): Name of the call; action or message in the notation of schedules;
            or words for the object of a wait.
    """

    number: int
    time: float
    n_bytes: int
    pipeline: int
    call: int
    peer: int
    kind: int
    phase: int
    text: str


class Log(NamedTuple):
    """The content of a flight record.

    Attributes:
        rank (int): The rank, in the first pipeline that the process made.
        n_ranks (int): Number of ranks of that pipeline.
        host (str): The host of the process.
        process (int): Number of the process on its host.
        entries (list): The entries, from the oldest to the newest.
        n_steps (int): Number of steps that the process has finished, on all pipelines.
        saved (int): Number of those that the newest snapshot has; 0 without one, and on
            ranks that do not give snapshots their names.
    """

    rank: int
    n_ranks: int
    host: str
    process: int
    entries: list[FlightEntry]
    n_steps: int = 0
    saved: int = 0


class FlightRecord:
    """The record of this process.

    Attributes:
        pipeline (int): Number of the pipeline that is in use; see :class:`FlightEntry`.
        call (int): Number of the call that the pipeline makes.
        n_steps (int): Number of steps that this process has finished.
        host (str): The name of this host.

    Example:
        >>> record = FlightRecord()
        >>> record.write(ACTION, BEGIN, "0F0")
        >>> record.write(SEND, BEGIN, "0F0>1", peer=1, n_bytes=96)
        >>> [entry.text for entry in record.log().entries]
        ['0F0', '0F0>1']
    """

    n_bytes = _HEADER_BYTES + N_ENTRIES * _ENTRY.size

    def __init__(self) -> None:
        self._memory: Any = bytearray(self.n_bytes)
        self._numbers = itertools.count()
        self.pipeline = self.call = self.n_steps = 0
        self.host = socket.gethostname()[:_LONGEST_HOST]
        self._last_error = 0, 0, 0
        self.name_rank(0, 1)

    def name_rank(self, rank: int, n_ranks: int) -> None:
        """Writes rank, host and process into the header."""
        about = {
            "rank": rank,
            "n_ranks": n_ranks,
            "host": self.host,
            "process": os.getpid(),
            "n_entries": N_ENTRIES,
            "entry_bytes": _ENTRY.size,
        }
        text = _MAGIC + f"{_VERSION}\n{json.dumps(about)}\n".encode()
        self._memory[:_HEADER_BYTES] = text.ljust(_HEADER_BYTES, b"\0")

    def move(self, memory: Any) -> None:
        """Moves the record to other memory of `n_bytes` bytes, such as a file's."""
        memory[:] = self._memory[:]
        self._memory = memory

    def write(
        self, kind: int, phase: int, text: str, peer: int = NOBODY, n_bytes: int = 0
    ) -> None:
        """Adds an entry, which replaces the oldest one in a full record.

        Args:
            kind (int): Kind of the entry; see :class:`FlightEntry` for all arguments.
            phase (int): `BEGIN` or `END`.
            text (str): Text, of which 50 bytes are kept.
            peer (int): The rank at the other end.
            n_bytes (int): Bytes of a message's arrays.
        """
        number = next(self._numbers)
        _ENTRY.pack_into(
            self._memory,
            _HEADER_BYTES + number % N_ENTRIES * _ENTRY.size,
            number + 1,
            time.time(),
            n_bytes,
            self.pipeline,
            self.call,
            peer,
            kind,
            phase,
            text.encode("utf-8", "replace"),
            number + 1,
        )

    def begin_call(self, pipeline: int, number: int, name: str) -> None:
        """Records that a call of a pipeline begins.

        Args:
            pipeline (int): A number of 32 bits for the pipeline.
            number (int): Position of the call among all of this pipeline, from 1.
            name (str): Name of the call.
        """
        self.pipeline, self.call = pipeline, number
        self.write(CALL, BEGIN, name, n_bytes=_peak_bytes())

    def fail(self, error: BaseException) -> None:
        """Records a failure, once for each error."""
        # A later error may have the identity of an earlier one, but in another call.
        known = id(error), self.pipeline, self.call
        if known == self._last_error:
            return
        self._last_error = known
        # The error is about to be raised. Neither an error in its text nor a lack of
        # memory must hide it.
        with contextlib.suppress(Exception):
            self.write(FAILURE, END, f"{type(error).__name__}: {error}")

    def end_step(self) -> None:
        """Counts a finished step."""
        self.n_steps += 1
        _COUNT.pack_into(self._memory, _STEPS_AT, self.n_steps)

    def save(self, n_steps: int) -> None:
        """Records that there is a snapshot of the state after some steps.

        Args:
            n_steps (int): Number of steps that this process had finished.
        """
        _COUNT.pack_into(self._memory, _SAVED_AT, n_steps)

    def log(self) -> Log:
        """Returns the content of the record."""
        return read(bytes(self._memory[:]), "this process's")


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def with_end(data: bytearray, text: str) -> None:
    """Adds the reason of its process's end to the content of a record.

    Raises:
        ValueError: If the content is not a flight record.
    """
    entries = read(bytes(data), "it").entries
    last = (
        entries[-1]
        if entries
        else FlightEntry(0, 0.0, 0, 0, 0, NOBODY, FAILURE, END, "")
    )
    offset = _HEADER_BYTES + last.number % N_ENTRIES * _ENTRY.size
    number = last.number + 1
    place = 0, last.pipeline, last.call, NOBODY, FAILURE, END
    _ENTRY.pack_into(data, offset, number, time.time(), *place, text.encode(), number)


def read(data: bytes, source: str) -> Log:
    """Reads a flight record, which another process may have written or damaged.

    Args:
        data (bytes): The content of a file.
        source (str): Name of the file, for error messages.

    Raises:
        ValueError: If the content is not a flight record, has another version, or was
            cut off.
    """
    line, _, rest = data[:_HEADER_BYTES].partition(b"\n")
    if not line.startswith(_MAGIC):
        raise ValueError(f"{source} is no flight record")
    version = line[len(_MAGIC) :].decode(errors="replace")
    if version != str(_VERSION):
        raise ValueError(
            f"{source} is a flight record of version {version}; this divisible reads"
            f" version {_VERSION}: use the one that wrote it"
        )
    if len(data) != FlightRecord.n_bytes:
        raise ValueError(
            f"{source} was cut off: it has {len(data)} bytes of {FlightRecord.n_bytes}"
        )
    try:
        about = json.loads(rest.partition(b"\n")[0])
        size = about["n_entries"], about["entry_bytes"]
        log = Log(
            _integer(about["rank"], 0, _MOST_RANKS - 1),
            _integer(about["n_ranks"], 1, _MOST_RANKS),
            printable(about["host"][:_LONGEST_HOST]),
            _integer(about["process"], 1, _MOST_PROCESSES),
            [],
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{source} is damaged: its header cannot be read") from None
    if log.rank >= log.n_ranks:
        raise ValueError(
            f"{source} is damaged: it is of rank {log.rank} of {log.n_ranks}"
        )
    if size != (N_ENTRIES, _ENTRY.size):
        raise ValueError(f"{source} is damaged: its header tells of other entries")
    (n_steps,) = _COUNT.unpack_from(data, _STEPS_AT)
    (saved,) = _COUNT.unpack_from(data, _SAVED_AT)
    return log._replace(entries=sorted(_entries(data)), n_steps=n_steps, saved=saved)


def _integer(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(value)
    return value


def _entries(data: bytes) -> Iterator[FlightEntry]:
    for slot, fields in enumerate(_ENTRY.iter_unpack(data[_HEADER_BYTES:])):
        *others, text, again = fields
        number = others[0]
        # The process may have ended while it wrote an entry, or may be writing it.
        if number == again and number and (number - 1) % N_ENTRIES == slot:
            text = text.rstrip(b"\0").decode("utf-8", "ignore")
            entry = FlightEntry(*others, printable(text))
            if _is_possible(entry):
                yield entry


def _is_possible(entry: FlightEntry) -> bool:
    """Returns whether a process can have written an entry like this one."""
    is_known = entry.kind <= FAILURE and entry.phase <= END
    return is_known and entry.peer >= EVERYBODY and 0 <= entry.time <= _LATEST


#: The record of this process.
own_flight_record = FlightRecord()
