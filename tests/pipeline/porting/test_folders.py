"""Folders are made by all ranks, of which one is first."""

from pipeline.porting.porting import port
from tests.support.ported import added, training_script


def test_folders_may_be_there_already():
    before = (
        "import os\nif not os.path.exists(out):\n    os.makedirs(out)\nos.mkdir('a')"
    )
    lines = added(training_script(before=before))
    assert "os.makedirs(out, exist_ok=True)" in lines
    assert "os.makedirs('a', exist_ok=True)" in lines


def test_other_calls_stay():
    calls = ["os.makedirs(out, exist_ok=True)", "makedirs(out)", "os.rmdir('a')"]
    text = port(training_script(before="\n".join(["import os", *calls]))).text
    assert "\n".join(calls) in text
