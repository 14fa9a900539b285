"""No file of a user's hides a package, or it is said which one does."""

import os
import subprocess
import sys

import pytest

from chainer_compat import _packages
from tests.support.processes import ROOT

SCRIPT = """
import sys
import chainer_compat, chainer_kernels, divisible, mixed_precision, pipeline
for package in chainer_compat, chainer_kernels, divisible, mixed_precision, pipeline:
    assert package.__file__.startswith({root!r}), package.__file__
import beside
print("trained", sys.argv[1:])
"""
COMMAND = "import sys, divisible_command; sys.exit(divisible_command.main())"


def python(arguments, folder, **environment):
    # The copy of chainer_compat that a start-up file loads may be another one.
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        timeout=100,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "net.py").write_text(SCRIPT.format(root=str(ROOT)))
    return tmp_path


def test_the_names_are_those_of_all_packages():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(_packages.NAMES) == folders - {"tests", "benchmarks", "examples"}


def test_run_cannot_be_hidden(folder):
    for name in _packages.NAMES:
        (folder / f"{name}.py").write_text("raise SystemExit(0)")
    # From anywhere: the command's own folder comes first on the path, not this one.
    path = os.pathsep.join([str(ROOT), str(folder)])
    result = python(["-c", COMMAND, "run", "net.py", "--x"], "/", PYTHONPATH=path)
    assert "there is no script net.py" in result.stdout
    script = str(folder / "net.py")
    result = python(["-c", COMMAND, "run", script, "--x"], "/", PYTHONPATH=path)
    assert (result.returncode, result.stdout) == (0, "trained ['--x']\n")


def test_each_mark_is_a_module_of_its_package():
    assert sorted(_packages._MARKS) == sorted(_packages.NAMES)
    for name, mark in _packages._MARKS.items():
        assert (ROOT / name / f"{mark}.py").is_file(), (name, mark)


# What the start-up files import cannot be hidden.
@pytest.mark.parametrize("hidden", ["divisible", "mixed_precision"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_package_says_which_file_hides_another(hidden, is_package, folder):
    path = folder / hidden / "__init__.py" if is_package else folder / f"{hidden}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    result = python(["-c", "import pipeline"], folder)
    assert result.returncode == 1
    assert f"ImportError: {path} hides the package {hidden!r}" in result.stdout
    assert "divisible run" in result.stdout


def test_a_stranger_that_runs_as_a_package_is_told(folder):
    path = folder / "pipeline.py"
    path.write_text("from divisible import Divisible")
    result = python(["-m", "pipeline", "net.py"], folder)
    assert f"'python -m pipeline' runs {path}, not the package" in result.stdout


def test_a_folder_of_data_hides_nothing(folder):
    (folder / "pipeline").mkdir()
    (folder / "divisible").mkdir()
    result = python(["-m", "pipeline", "net.py"], folder)
    assert (result.returncode, result.stdout) == (0, "trained []\n")
