"""The file system that fails counts every call, and lets the right one go wrong."""

import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faulty_files import Fault, faulty


def names(files):
    return [call.name for call in files.calls]


def use_everything(folder):
    """Calls the operating system in all the ways that Python's modules do."""
    path = folder / "a"
    path.mkdir()
    (path / "b").write_text("text")
    with open(path / "b", "r+b") as file:
        file.read(2)
        file.write(b"more")
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    (path / "b").rename(path / "c")
    os.replace(path / "c", path / "b")
    assert (path / "b").is_file() and os.listdir(path) == ["b"]
    shutil.rmtree(path)
    (folder / "c").touch()
    (folder / "c").unlink()


def test_calls_are_counted(tmp_path):
    with faulty(tmp_path) as files:
        use_everything(tmp_path)
    found = names(files)
    counts = {"mkdir": 1, "rename": 1, "replace": 1, "fsync": 2, "listdir": 1}
    assert {name: found.count(name) for name in counts} == counts
    # That of a file, that of the directory, and that of what is removed.
    assert found.count("rmdir") == 1 and found.count("unlink") == 2
    assert found.count("open") == found.count("close") == 5
    assert {call.path for call in files.calls} == {
        str(tmp_path / name) for name in ("a", "a/b", "a/c", "c")
    }


def test_what_is_elsewhere_does_not_count(tmp_path):
    (tmp_path / "here").mkdir()
    with faulty(tmp_path / "here", Fault("EIO", 0, lasts=True)) as files:
        use_everything(tmp_path)
    assert not files.calls
    assert open is io.open and vars(os)["open"].__module__ == "posix"


def test_each_call_fails_in_turn(tmp_path):
    with faulty(tmp_path) as files:
        use_everything(tmp_path)
    for at, name in enumerate(names(files)):
        with faulty(tmp_path, Fault("EIO", at)) as failing:
            try:
                use_everything(tmp_path)
            except (OSError, AssertionError):
                pass
            else:
                # What may be asked, or tried, in vain.
                assert name in ("stat", "lstat", "fstat", "close", "utime")
        assert [call.name for call in failing.injected] == [name]
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        (tmp_path / "c").unlink(missing_ok=True)


def test_errors_are_those_of_the_operating_system(tmp_path):
    with faulty(tmp_path, Fault("ENOSPC", 1, lasts=True)):
        descriptor = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="No space left on device$") as caught:
            os.write(descriptor, b"abc")
        assert caught.value.errno == errno.ENOSPC and caught.value.filename is None
        with pytest.raises(OSError, match="No space left on device: .*/b'$") as caught:
            os.mkdir(tmp_path / "b")
        assert caught.value.filename == str(tmp_path / "b")
        os.unlink(tmp_path / "a")
    os.close(descriptor)


def test_what_is_cut_short_goes_on(tmp_path):
    content = bytes(range(200))
    for at in range(6):
        with faulty(tmp_path, Fault("short", at)) as files:
            (tmp_path / "a").write_bytes(content)
            with open(tmp_path / "a", "rb") as file:
                assert file.read(200) == content
        assert len(files.injected) == (files.calls[at].name in ("read", "write"))


PROGRAM = """
import os, sys
from tests.support.faulty_files import Fault, faulty
folder, kind, at = sys.argv[1:]
with faulty(folder, Fault(kind, int(at))):
    for name in "ab":
        with open(f"{folder}/{name}", "wb") as file:
            file.write(bytes(200))
            file.flush()
            if name == "a":
                os.fsync(file.fileno())
    os.rename(f"{folder}/a", f"{folder}/c")
    os.rename(f"{folder}/b", f"{folder}/d")
    os.mkdir(f"{folder}/e")
"""


@pytest.mark.parametrize(
    ("kind", "at", "sizes"),
    [
        ("dies", 1, {"a": 0}),
        ("torn", 1, {"a": 100}),
        ("dies", 9, {"c": 200, "d": 200}),
        ("power loss", 9, {"a": 200, "b": 0}),
    ],
)
def test_the_process_ends(tmp_path, kind, at, sizes):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), kind, str(at)],
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    assert result.returncode == -9
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == sizes
