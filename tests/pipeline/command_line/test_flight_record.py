"""``divisible flight-record`` answers in words, whatever the files hold."""

import os
import random
import re
import resource

import pytest
from click.testing import CliRunner

from divisible.communication.flight_files import VARIABLE
from divisible.communication.flight_record import (
    ACTION,
    BEGIN,
    END,
    RECEIVE,
    FlightRecord,
)
from pipeline.command_line.main import main


def contents():
    """Returns the records of two ranks."""
    found = []
    for rank in range(2):
        record = FlightRecord()
        record.name_rank(rank, 2)
        memory = bytearray(record.n_bytes)
        record.move(memory)
        for i in range(3):
            record.begin_call(7, i, "step")
            record.write(ACTION, BEGIN, f"{rank}F0")
            record.write(ACTION, END, f"{rank}F0")
        if rank == 0:
            record.write(RECEIVE, BEGIN, "0B0<1", 1)
        found.append(bytes(memory))
    return found


def shown(*arguments):
    result = CliRunner().invoke(main, ["flight-record", *map(str, arguments)])
    assert result.exit_code in (0, 1), result.output
    assert isinstance(result.exception, (SystemExit, type(None))), result.exception
    assert "\x1b" not in result.output
    return result


@pytest.mark.parametrize("n", [100, pytest.param(3000, marks=pytest.mark.matrix)])
def test_damaged_records(tmp_path, n):
    whole, draw, n_shown = contents(), random.Random(0), 0
    for _ in range(n):
        for rank, data in enumerate(whole):
            place, size = draw.randrange(512 + 12 * 98), draw.choice([1, 4, 64])
            filling = draw.choice([bytes(size), b"\x1b[2J" * size, b"9" * size])
            damaged = data[:place] + filling[:size] + data[place + size :]
            (tmp_path / f"rank-{rank}.flight").write_bytes(damaged)
        n_shown += shown(tmp_path).exit_code == 0
    assert 0.5 * n < n_shown <= n


def test_without_a_directory_the_newest_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    result = shown()
    assert result.exit_code == 1
    assert "there are no flight records of yours" in result.output
    (tmp_path / "job").mkdir()
    for rank, data in enumerate(contents()):
        (tmp_path / "job" / f"rank-{rank}.flight").write_bytes(data)
    result = shown()
    assert f"flight records in {tmp_path}/job" in result.output
    assert "rank 1 is behind: it began call 2, step" in result.output
    found = re.search(
        rf"rank 0 was process {os.getpid()} on .*, and held ([\d.]+) GB at most when"
        rf" call 2 began",
        result.output,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 0 < float(found[1]) <= peak / 1e9 + 0.01
