"""Files that are there completely or not at all."""

import errno
import itertools
import json
import os
import re
import shutil

import pytest
from matplotlib.figure import Figure

from divisible.files import why_not, write_json, write_picture, written_aside
from tests.support.faulty_files import Fault, faulty


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "plan.json"
    with written_aside(path) as aside:
        with open(aside, "w") as file:
            file.write("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_if_writing_fails(tmp_path):
    path = tmp_path / "plan.json"
    write_json(path, {"cuts": [0, 2]})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"cuts": [0, float("nan")]})
    assert json.loads(path.read_text()) == {"cuts": [0, 2]}
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_before_it_writes_is_heard(tmp_path):
    with pytest.raises(KeyError), written_aside(tmp_path / "trace.json"):
        raise KeyError("no such rank")
    assert not list(tmp_path.iterdir())


def test_calls_of_the_operating_system_fail(tmp_path):
    """The file is what it was, or what it is to be; the first error is told."""
    path = tmp_path / "plan.json"
    with faulty(tmp_path) as files:
        write_json(path, {"n": 0})
    calls = [call.name for call in files.calls]
    assert calls == ["stat", "open", "write", "close", "replace"]
    # Where only the look at what is there fails, the file is written.
    for at, lasts in itertools.product(range(1, len(calls)), (False, True)):
        write_json(path, {"n": at})
        failing = faulty(tmp_path, Fault("EIO", at, lasts))
        with failing as files, pytest.raises(OSError, match="Input/output") as caught:
            write_json(path, {"n": 10})
        names = [call.name for call in files.injected]
        assert caught.value.filename == str(path)
        assert json.loads(path.read_text()) == {"n": at}
        left = {*tmp_path.iterdir()} - {path}
        assert not left or "unlink" in names
        for each in left:
            each.unlink()


def test_a_pipe_and_a_device_stay_what_they_are(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "null"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json(pipe, {"n": 3})
        assert json.loads(os.read(reader, 100)) == {"n": 3}
    finally:
        os.close(reader)
    write_json(link, {"n": 3})
    write_picture(link, Figure(figsize=(1, 1)))
    assert pipe.is_fifo() and link.is_symlink()
    assert {*tmp_path.iterdir()} == {pipe, link}


def test_a_picture_appears_when_it_is_complete(tmp_path):
    figure = Figure(figsize=(1, 1))
    for name, appears in (("a.svg", "a.svg"), ("b", "b.png")):
        path = tmp_path / appears
        write_picture(tmp_path / name, figure)
        picture = path.read_bytes()
        with faulty(tmp_path, Fault("ENOSPC", 0, True)), pytest.raises(OSError):
            write_picture(tmp_path / name, figure, dpi=300)
        assert path.read_bytes() == picture
    assert {path.name for path in tmp_path.iterdir()} == {"a.svg", "b.png"}


def test_the_room_on_a_disk_is_told(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    full = OSError(errno.ENOSPC, "No space left on device")
    words = why_not(full, tmp_path / "no" / "such")
    told = re.fullmatch(
        "No space left on device; ([0-9,]+) bytes are free there", words
    )
    assert abs(int(told[1].replace(",", "")) - free) < 1 << 30
    assert why_not(OSError(errno.EACCES, "No entry"), tmp_path) == "No entry"
