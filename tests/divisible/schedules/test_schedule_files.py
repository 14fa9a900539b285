"""Schedules from files, and what is said of files that have none."""

import argparse

import pytest

from divisible.schedules import ScheduleError, gpipe
from divisible.schedules.schedule_files import (
    UnknownScheduleError,
    name_or_file,
    read_schedule,
    schedule_argument,
)


def test_a_file_is_read_and_a_name_stays(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(f"{gpipe(2, 4)}\n")
    assert name_or_file(str(path)) == gpipe(2, 4)
    assert schedule_argument(str(path)) == gpipe(2, 4)
    assert name_or_file("gpipe") == "gpipe"


def test_a_file_that_cannot_run_is_refused_with_its_fault(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("mine: 1 microbatch, 1 stage on rank 0\nrank 0 0B0 0F0\n")
    with pytest.raises(ScheduleError, match="mine.txt: rank 0: 0B0 runs before 0F0"):
        read_schedule(path)
    with pytest.raises(argparse.ArgumentTypeError, match="0B0 runs before 0F0"):
        schedule_argument(str(path))


def test_bytes_are_no_schedule(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="mine.txt"):
        read_schedule(path)


def test_a_text_that_is_neither_is_refused_with_the_names(tmp_path):
    with pytest.raises(UnknownScheduleError, match="choose one of 1f1b, "):
        name_or_file("1f2b")
    with pytest.raises(UnknownScheduleError, match="neither a file"):
        name_or_file(str(tmp_path))
