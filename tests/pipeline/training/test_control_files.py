import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.training import control_files
from pipeline.training.control_files import Progress, Run, Wishes

RUN = Run(7, "host", "train.py", "2 ranks", "runs", 1, 5)


def test_files_are_read_as_they_were_written(tmp_path):
    for content in (RUN, Wishes(3, 2, True), Progress(3, 40, 1.5, 12.0, 2, "saved")):
        control_files.write(tmp_path, content)
        assert control_files.read(tmp_path, type(content)) == content
        control_files.forget(tmp_path, type(content))
        control_files.forget(tmp_path, type(content))
        assert control_files.read(tmp_path, type(content)) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"start": 1, "saves": "2"}', '{"start": 1, "more": 2}']
)
def test_other_contents_are_no_files_of_a_run(tmp_path, text):
    (tmp_path / "wishes.json").write_text(text)
    assert control_files.read(tmp_path, Wishes) is None


def test_a_directory_has_one_run_and_is_empty_before_and_after(tmp_path):
    folder = tmp_path / "run"
    assert not control_files.is_live(folder)
    with control_files.opened(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert control_files.is_live(folder)
        control_files.write(folder, RUN)
        is_refused = pytest.raises(ValueError, match="belongs to a run that lives")
        with is_refused, control_files.opened(folder):
            pass
        control_files.give(folder, "save")
        assert control_files.read(folder, Run) == RUN
    assert not folder.exists()

    folder.mkdir(mode=0o700)
    (folder / "mine").touch()
    control_files.give(folder, "save")
    with control_files.opened(folder):
        # Orders to an earlier run are no orders to this one.
        assert control_files.take(folder) == []
    assert os.listdir(folder) == ["mine"]


def test_a_killed_run_is_stale(tmp_path):
    folder = tmp_path / "run"
    code = (
        "import os, pathlib, sys\nfrom pipeline.training import control_files\n"
        "with control_files.opened(pathlib.Path(sys.argv[1])) as folder:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=False, timeout=100)
    assert folder.exists() and not control_files.is_live(folder)
    with control_files.opened(folder):
        assert control_files.is_live(folder)


def test_a_directory_that_others_can_write_to_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    is_refused = pytest.raises(PermissionError, match="other users can write")
    with is_refused, control_files.opened(folder):
        pass


def test_orders_are_taken_once_and_answered(tmp_path):
    with control_files.opened(tmp_path / "run") as folder:
        orders = [control_files.give(folder, word) for word in ("save", "stop")]
        taken = control_files.take(folder)
        assert sorted(taken) == sorted(orders) and control_files.take(folder) == []
        control_files.answer(folder, orders[1], "stopped")
        assert control_files.answered(folder, orders[0], 0.3) is None
        assert control_files.answered(folder, orders[1], 10) == "stopped"
        # A run that ends at once leaves the time to read an answer.
        last = control_files.give(folder, "stop")
        readers = ThreadPoolExecutor(1)
        read = readers.submit(control_files.answered, folder, last, 60)
        control_files.answer(folder, last, "ended")
    assert read.result() == "ended"
    readers.shutdown()
    # The run has ended, so nobody answers.
    assert control_files.answered(folder, orders[0], 600) is None
