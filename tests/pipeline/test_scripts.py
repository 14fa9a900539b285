"""Scripts on one rank; tests/mpi/pipeline/test_life.py has several."""

import runpy
import signal
import sys

import pytest
from click.testing import CliRunner

from pipeline import scripts
from pipeline.command_line.main import main
from pipeline.training import signals


@pytest.fixture(autouse=True)
def keep_settings(monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # The process remembers a stop of an earlier test.
    monkeypatch.setattr(signals, "_has_stopped", False)
    handler = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, handler)


def run(tmp_path, text, *arguments):
    path = tmp_path / "script.py"
    path.write_text(text)
    scripts.run_script([str(path), *arguments])


@pytest.mark.parametrize("arguments, code", [([], 2), (["--help"], 0)])
def test_the_module_says_how_it_is_called(arguments, code, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pipeline", *arguments])
    with pytest.raises(SystemExit) as error:
        runpy.run_module("pipeline", run_name="__main__")
    assert error.value.code == code
    assert "Usage: python -m pipeline [OPTIONS] SCRIPT" in capsys.readouterr().out


def test_a_script_runs_as_the_main_one(tmp_path, capsys):
    (tmp_path / "beside.py").write_text("number = 3")
    run(
        tmp_path,
        "import sys, beside\nprint(__name__, beside.number, sys.argv[1:])",
        "--epoch",
        "2",
    )
    assert capsys.readouterr().out == "__main__ 3 ['--epoch', '2']\n"


@pytest.mark.parametrize("text, code", [("exit(3)", 3), ("exit('no')", "no")])
def test_the_exit_code_is_that_of_the_script(text, code, tmp_path):
    with pytest.raises(SystemExit) as error:
        run(tmp_path, f"import sys\nsys.{text}")
    assert error.value.code == code


def test_a_traceback_begins_in_the_script(tmp_path, capsys):
    text = (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(1) from e"
    )
    with pytest.raises(SystemExit) as error:
        run(tmp_path, text)
    assert error.value.code == 1
    written = capsys.readouterr().err
    assert "runpy" not in written.split("direct cause")[1]
    assert "ZeroDivisionError" in written
    assert "KeyError: 1" in written


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)"])
@pytest.mark.parametrize("has_stopped", [False, True])
def test_after_a_signal_the_code_says_so(has_stopped, end, tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "_has_stopped", has_stopped)
    code = 0
    try:
        run(tmp_path, f"import sys\n{end}")
    except SystemExit as exit:
        code = exit.code
    assert code == (75 if has_stopped else 0)


def test_what_is_not_there_is_refused():
    with pytest.raises(SystemExit, match="there is no script missing.py"):
        scripts.run_script(["missing.py"])


def test_an_option_of_the_launcher_is_sent_to_the_launcher():
    with pytest.raises(SystemExit, match="no script -n.*mpiexec -n 4 divisible run"):
        scripts.run_script(["-n", "2", "train.py"])


def test_the_command_hands_all_arguments_to_the_script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)")
    arguments = ["--help", "-x", "--", "run"]
    result = CliRunner().invoke(main, ["run", "--compat", "", str(path), *arguments])
    assert (result.exit_code, result.output) == (3, f"{arguments}\n")
