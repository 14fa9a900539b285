"""Results of benchmarks, and measurements that the hypervisor may disturb."""

import argparse
import os
import time
from pathlib import Path

import pytest

from benchmarks.common import results


class Alone:
    """A communicator of one rank."""

    def bcast(self, value):
        return value


@pytest.mark.parametrize(
    "parts, tries",
    [([0.01], 1), ([0.2, 0.01], 2), ([0.2, 0.3, 0.4, 0.5], 3)],
    ids=["quiet", "quiet at last", "never quiet"],
)
def test_what_was_disturbed_is_measured_again(monkeypatch, parts, tries):
    now, stolen, done = [0.0], [0.0], []

    def measure():
        # Longer than the patience in two tries.
        now[0] += 70.0
        stolen[0] += 70.0 * os.cpu_count() * parts[len(done)]
        done.append(parts[len(done)])
        return len(done)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(results, "stolen_seconds", lambda: stolen[0])
    found, part = results.undisturbed(Alone(), measure)
    assert found == len(done) == tries
    assert part == pytest.approx(parts[tries - 1])
    # Without patience the first try counts.
    done.clear()
    assert results.undisturbed(Alone(), measure, patient=False)[0] == 1
    assert done == parts[:1]


def test_the_system_says_how_much_was_stolen():
    first = results.stolen_seconds()
    assert 0.0 <= first <= results.stolen_seconds() < 1e9


def test_a_result_is_printed_and_kept_without_its_progress(tmp_path, capsys):
    file = tmp_path / "new" / "folder" / "name.txt"
    result = results.Result("name", file)
    result.write("a line", "another one")
    result.progress("half of it")
    result.save()
    assert file.read_text() == "a line\nanother one\n"
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["a line", "another one"]
    assert printed[2].endswith("0.0 min: half of it")
    assert printed[3].startswith("written: ")
    assert (
        Path.cwd() / printed[3].removeprefix("written: ")
    ).resolve() == file.resolve()


def test_a_silent_result_does_nothing(tmp_path, capsys):
    result = results.Result("name", tmp_path / "name.txt", silent=True)
    result.write("a line")
    result.progress("half of it")
    result.save()
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().out


def test_rounds_take_turns_and_are_told():
    order, told = [], []
    found = results.alternate(
        {"a": "a", "b": "b"}, 2, lambda name: order.append(name) or 1.0, told.append
    )
    assert order == ["a", "b", "b", "a"]
    assert found == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert told == ["round 1 of 2", "round 2 of 2"]


def test_a_package_that_is_missing_is_described_as_missing():
    text = results.machine("numpy", "no-such-package")
    assert "no-such-package not installed" in text and "numpy not" not in text


def test_the_folder_of_a_picture_is_made_before_it_is_drawn(tmp_path):
    file = tmp_path / "new" / "folder" / "picture.png"
    assert results.new_file(str(file)) == file
    assert file.parent.is_dir() and not file.exists()
    file.touch()
    with pytest.raises(argparse.ArgumentTypeError, match="no folder for"):
        results.new_file(str(file / "picture.png"))
