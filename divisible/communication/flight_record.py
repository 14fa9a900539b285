"""The last actions, messages and waits of a rank, where its end does not reach them.

A ring of entries, each of the same size, behind a header. Its memory may be that of a
file (:mod:`divisible.communication.flight_files`): what was written there is kept by
the kernel, whatever ends the process::

    header            entry 1025   entry 2   entry 3   ...   entry 1024
    version, rank     newest       oldest

To write an entry takes about a microsecond, no memory that stays, and no call of the
system. One that was cut off by the end has different numbers at its two ends, and is
left out when it is read.
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

#: What an entry is about: a call of the pipeline, an action of the schedule, a message,
#: a wait that takes long, a failure.
CALL, ACTION, SEND, RECEIVE, WAIT, FAILURE = range(6)
#: Whether it begins or ends.
BEGIN, END = range(2)
#: In place of a rank: nobody, or all ranks.
NOBODY, EVERYBODY = -1, -2

N_ENTRIES = 1024
_VERSION = 1
_MAGIC = b"divisible flight record "
_HEADER_BYTES = 512
# Number, time, bytes, pipeline, call, peer, kind, phase, text, number.
_ENTRY = struct.Struct("<QdqIIiBB50sQ")
# Bounds of what a file may say. MPI numbers ranks in 32 bits, as systems do processes;
# a later time has no date of four digits.
_MOST_RANKS = _MOST_PROCESSES = 2**31 - 1
_LATEST = 253_402_300_799
_LONGEST_HOST = 64


class Entry(NamedTuple):
    """One line of a flight record.

    Attributes:
        number (int): Counts the entries of a rank, from 1.
        time (float): Seconds since 1970.
        n_bytes (int): The bytes of a message's arrays; where a call begins, the most
            memory that the process has held.
        pipeline (int): Stands for the pipeline, on all of its ranks alike; 0 if there
            is none yet.
        call (int): The number of the pipeline's call.
        peer (int): The rank at the other end, `NOBODY` or `EVERYBODY`.
        kind (int): `CALL`, `ACTION`, `SEND`, `RECEIVE`, `WAIT` or `FAILURE`.
        phase (int): `BEGIN` or `END`.
        text (str): The call, the action or message in the notation of schedules, or
            what is waited for.
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
        rank (int): Among those of the first pipeline that the process made.
        n_ranks (int): How many those are.
        host (str): Where it ran.
        process (int): Its number there.
        entries (list): From the oldest to the newest.
    """

    rank: int
    n_ranks: int
    host: str
    process: int
    entries: list[Entry]


class FlightRecord:
    """The record of this process.

    Attributes:
        pipeline (int): The pipeline that is in use, as an :class:`Entry` has it.
        call (int): The number of the call that it makes.
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
        self.pipeline = self.call = 0
        self.host = socket.gethostname()[:_LONGEST_HOST]
        self._last_error = 0, 0, 0
        self.name_rank(0, 1)

    def name_rank(self, rank: int, n_ranks: int) -> None:
        """Writes into the header whose record it is."""
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
        """Goes on in other memory, such as that of a file, of `n_bytes` bytes."""
        memory[:] = self._memory[:]
        self._memory = memory

    def write(
        self, kind: int, phase: int, text: str, peer: int = NOBODY, n_bytes: int = 0
    ) -> None:
        """Adds an entry, in place of the oldest if there are many.

        Args:
            kind (int): As of :class:`Entry`, like the others.
            phase (int): `BEGIN` or `END`.
            text (str): Of which 50 bytes are kept.
            peer (int): The rank at the other end.
            n_bytes (int): Of a message's arrays.
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
        """Notes that a call of a pipeline begins.

        Args:
            pipeline (int): Stands for the pipeline; a number of 32 bits.
            number (int): Counts the calls of this pipeline.
            name (str): The call.
        """
        self.pipeline, self.call = pipeline, number
        self.write(CALL, BEGIN, name, n_bytes=_peak_bytes())

    def fail(self, error: BaseException) -> None:
        """Notes, once for each error, that something failed."""
        # The next one may lie where an earlier one has been, but in another call.
        known = id(error), self.pipeline, self.call
        if known == self._last_error:
            return
        self._last_error = known
        # What is to be raised must not be hidden: by an error in its own words, or by
        # one for want of memory.
        with contextlib.suppress(Exception):
            self.write(FAILURE, END, f"{type(error).__name__}: {error}")

    def log(self) -> Log:
        """Returns what is there."""
        return read(bytes(self._memory[:]), "this process's")


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def with_end(data: bytearray, text: str) -> None:
    """Adds to the content of a record what ended its process.

    Raises:
        ValueError: If the content is that of no record.
    """
    entries = read(bytes(data), "it").entries
    last = entries[-1] if entries else Entry(0, 0.0, 0, 0, 0, NOBODY, FAILURE, END, "")
    offset = _HEADER_BYTES + last.number % N_ENTRIES * _ENTRY.size
    number = last.number + 1
    place = 0, last.pipeline, last.call, NOBODY, FAILURE, END
    _ENTRY.pack_into(data, offset, number, time.time(), *place, text.encode(), number)


def read(data: bytes, source: str) -> Log:
    """Reads a flight record, which somebody else may have written, or damaged.

    Args:
        data (bytes): The content of a file.
        source (str): Where it comes from, for error messages.

    Raises:
        ValueError: If it is none, or of another version, or was cut off.
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
    return log._replace(entries=sorted(_entries(data)))


def _integer(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(value)
    return value


def _entries(data: bytes) -> Iterator[Entry]:
    for slot, fields in enumerate(_ENTRY.iter_unpack(data[_HEADER_BYTES:])):
        *others, text, again = fields
        number = others[0]
        # The process may have ended, or be at it, in the midst of one.
        if number == again and number and (number - 1) % N_ENTRIES == slot:
            text = text.rstrip(b"\0").decode("utf-8", "ignore")
            entry = Entry(*others, printable(text))
            if _is_possible(entry):
                yield entry


def _is_possible(entry: Entry) -> bool:
    """Returns whether a process can have written an entry, which was not damaged."""
    is_known = entry.kind <= FAILURE and entry.phase <= END
    return is_known and entry.peer >= EVERYBODY and 0 <= entry.time <= _LATEST


#: The one of this process.
own_flight_record = FlightRecord()
