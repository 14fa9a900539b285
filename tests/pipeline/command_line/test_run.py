"""``divisible run`` gives an old script the names that it uses."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from pipeline.command_line.main import main

SCRIPT = "import numpy as np\nprint(np.float is float)\n"


@pytest.mark.parametrize("options, code", [([], 0), (["--compat", ""], 1)])
def test_removed_names_come_back_unless_they_are_not_wanted(tmp_path, options, code):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    program = "import divisible_command as it; it.main()"
    command = [sys.executable, "-c", program, "run", *options, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == code, result.stderr
    assert ("script.py:2: RuntimeWarning" in result.stderr) == (code == 0)


@pytest.mark.parametrize(
    "mode, words", [("nams", "no mode 'nams'"), ("chainer1", "CHAINER_COMPAT=chainer1")]
)
def test_a_mode_that_cannot_be_turned_on_is_refused(tmp_path, mode, words):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(main, ["run", "--compat", mode, str(path)])
    assert result.exit_code and words in result.output


@pytest.mark.parametrize(
    "options, words",
    [
        (["--keep-going"], "give -n"),
        (["-n", "2"], "need --keep-going"),
        (["--restarts", "2"], "need --keep-going"),
        (["--keep-going", "-n", "2", "--launcher", "no-such-launcher"], "no-such-"),
        (["--keep-going", "-n", "0"], "not positive"),
    ],
)
def test_wrong_options_of_a_supervisor_are_refused(tmp_path, options, words):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    result = CliRunner().invoke(main, ["run", *options, str(path)])
    assert result.exit_code in (1, 2) and words in result.output, result.output


def test_a_supervisor_is_refused_below_a_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.command_line.run.is_one_of_several", lambda: True)
    options = ["--keep-going", "-n", "2", str(tmp_path / "script.py")]
    result = CliRunner().invoke(main, ["run", *options])
    assert result.exit_code == 2 and "leave out mpiexec" in result.output
