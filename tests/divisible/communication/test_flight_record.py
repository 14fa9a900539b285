"""A flight record has the last entries, whatever ended the process."""

import json
import math
import random
import resource
import struct

import pytest

from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    CALL,
    END,
    FAILURE,
    N_ENTRIES,
    SEND,
    FlightRecord,
    read,
    with_end,
)
from divisible.terminal_text import printable


def content(record):
    memory = bytearray(record.n_bytes)
    record.move(memory)
    return memory


def test_an_entry_comes_back_as_it_was_written():
    record = FlightRecord()
    record.name_rank(2, 4)
    record.begin_call(0x3F2A9C1B, 7, "step")
    record.write(SEND, END, "2F0>3", peer=3, n_bytes=1 << 40)
    log = read(bytes(content(record)), "it")
    assert (log.rank, log.n_ranks) == (2, 4)
    call, sent = log.entries
    assert (call.number, call.call, call.text) == (1, 7, "step")
    assert call.pipeline == sent.pipeline == 0x3F2A9C1B
    assert (sent.kind, sent.phase, sent.text) == (SEND, END, "2F0>3")
    assert (sent.peer, sent.n_bytes, sent.call) == (3, 1 << 40, 7)


@pytest.mark.parametrize("n", [0, 1, N_ENTRIES, N_ENTRIES + 1, 3 * N_ENTRIES + 5])
def test_the_newest_stay(n):
    record = FlightRecord()
    for i in range(n):
        record.write(ACTION, BEGIN, f"0F{i}")
    texts = [entry.text for entry in record.log().entries]
    assert texts == [f"0F{i}" for i in range(max(0, n - N_ENTRIES), n)]


def test_an_error_is_noted_once_and_the_same_place_holds_another():
    record, error = FlightRecord(), ValueError("wrong")
    for call in (1, 2):
        record.begin_call(7, call, "step")
        for _ in range(2):
            record.fail(error)
    kinds = [entry.kind for entry in record.log().entries]
    assert kinds == [CALL, FAILURE, CALL, FAILURE]


def test_one_that_was_cut_off_is_left_out():
    record = FlightRecord()
    for i in range(3):
        record.write(ACTION, BEGIN, f"0F{i}")
    memory = content(record)
    # The last bytes of the second one, as they were before.
    end = len(memory) - (N_ENTRIES - 2) * (len(memory) - 512) // N_ENTRIES
    memory[end - 8 : end] = bytes(8)
    assert [e.text for e in read(bytes(memory), "it").entries] == ["0F0", "0F2"]


def test_a_text_is_cut_at_a_whole_letter():
    record = FlightRecord()
    record.write(ACTION, BEGIN, "a" + "ä" * 100)
    record.write(ACTION, BEGIN, "\ud800")
    assert [e.text for e in record.log().entries] == ["a" + "ä" * 24, "?"]


def test_it_goes_on_where_it_was_moved():
    record = FlightRecord()
    record.write(ACTION, BEGIN, "0F0")
    memory = content(record)
    record.write(ACTION, END, "0F0")
    assert [e.phase for e in read(bytes(memory), "it").entries] == [BEGIN, END]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: b"", "a.flight is no flight record"),
        (lambda data: b"PK" + data, "a.flight is no flight record"),
        (lambda data: data.replace(b"record 2", b"record 3"), "of version 3; this"),
        (lambda data: data[:-1], "a.flight was cut off: it has"),
        (lambda data: data[:40], "a.flight was cut off: it has 40 bytes of"),
        (lambda data: data.replace(b'"rank"', b'"rang"'), "a.flight is damaged"),
        (lambda data: data.replace(b"1024", b"1023"), "a.flight is damaged"),
        (lambda data: data.replace(b"{", b"\0"), "a.flight is damaged"),
        (lambda data: data + b"\0", "a.flight was cut off: it has"),
    ],
)
def test_what_is_none_is_refused(change, message):
    data = bytes(content(FlightRecord()))
    with pytest.raises(ValueError, match=message):
        read(change(data), "a.flight")


def of_header(**changes):
    """Returns the content of a record whose header says something else."""
    data = bytes(content(FlightRecord()))
    magic, header, _ = data[:512].split(b"\n", 2)
    header = json.dumps({**json.loads(header), **changes}).encode()
    return b"\n".join([magic, header, b""]).ljust(512, b"\0")[:512] + data[512:]


@pytest.mark.parametrize(
    "changes",
    [
        {"n_ranks": 10**11},
        {"n_ranks": "x"},
        {"n_ranks": 0},
        {"n_ranks": 2.0},
        {"n_ranks": True},
        {"rank": "x"},
        {"rank": [1]},
        {"rank": -1},
        {"rank": 7},
        {"rank": None},
        {"process": 10**30},
        {"process": -1},
        {"process": "1"},
        {"host": 3},
        {"host": ["a"]},
        {"entry_bytes": "x"},
    ],
)
def test_a_header_that_nobody_writes_is_refused(changes):
    with pytest.raises(ValueError, match="a.flight is damaged"):
        read(of_header(**changes), "a.flight")


def test_what_controls_a_terminal_is_escaped():
    record = FlightRecord()
    record.write(ACTION, BEGIN, "\x1b]0;title\x07\n")
    assert [entry.text for entry in record.log().entries] == [r"\x1b]0;title\x07\n"]
    assert read(of_header(host="\x1b[2J"), "it").host == r"\x1b[2J"


@pytest.mark.parametrize(
    "field, value",
    [(1, math.nan), (1, math.inf), (1, -1.0), (1, 1e300), (5, -3), (6, 99), (7, 9)],
)
def test_an_entry_that_nobody_writes_is_left_out(field, value):
    record = FlightRecord()
    for i in range(2):
        record.write(ACTION, BEGIN, f"0F{i}")
    memory, entry = content(record), struct.Struct("<QdqIIiBB50sQ")
    fields = list(entry.unpack_from(memory, 512))
    fields[field] = value
    entry.pack_into(memory, 512, *fields)
    assert [each.text for each in read(bytes(memory), "it").entries] == ["0F1"]


@pytest.mark.parametrize("n", [1000, pytest.param(20000, marks=pytest.mark.matrix)])
def test_a_damaged_file_is_read_or_refused(n):
    record = FlightRecord()
    for i in range(20):
        record.begin_call(7, i, "step")
        record.write(SEND, END, f"0F{i}>1", peer=1, n_bytes=96)
    whole, draw = bytes(content(record)), random.Random(0)
    # Where something is.
    places, n_read = [draw.randrange(512 + 40 * 98) for _ in range(n)], 0
    for place in places:
        size = draw.choice([1, 2, 8, 64, 512])
        filling = draw.choice([bytes(size), b"9" * size, draw.randbytes(size)])
        data = whole[:place] + filling + whole[place + size :]
        try:
            log = read(data, "it")
        except ValueError as error:
            assert "it is " in str(error)
            continue
        n_read += 1
        assert 0 <= log.rank < log.n_ranks < 2**31 and log.process > 0
        assert all(printable(entry.text) == entry.text for entry in log.entries)
    assert 0.3 * n < n_read < n


@pytest.mark.parametrize("n", [0, 1, N_ENTRIES, N_ENTRIES + 1])
def test_the_end_of_a_process_can_be_added(n):
    record = FlightRecord()
    for i in range(n):
        record.begin_call(7, i, "step")
    memory = content(record)
    with_end(memory, "killed by signal 9")
    *others, last = read(bytes(memory), "it").entries
    assert len(others) == min(n, N_ENTRIES - 1)
    assert (last.kind, last.phase, last.text) == (FAILURE, END, "killed by signal 9")
    assert (last.number, last.call) == (n + 1, max(0, n - 1))
    with pytest.raises(ValueError, match="it is no flight record"):
        with_end(bytearray(5), "killed")


def test_a_call_has_the_memory_that_the_process_held():
    record = FlightRecord()
    record.begin_call(7, 1, "step")
    (entry,) = record.log().entries
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 0.9 * peak < entry.n_bytes / 1024 <= peak
