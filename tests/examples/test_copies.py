"""Each folder of examples stands alone: a copy of it elsewhere runs."""

import shutil
from pathlib import Path

import pytest

from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

FOLDERS = sorted(path.parent for path in ROOT.glob("examples/*/train.py"))
WITHOUT_OPTIONS = ("first", "paper_loop")


def run_copy(folder, tmp_path, *argv):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # Of the repository the copy sees what is installed, and so no examples.
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in ROOT.iterdir():
        if (package / "__init__.py").exists() and package.name != "examples":
            (packages / package.name).symlink_to(package)
    env = {"PYTHONPATH": str(packages)}
    # Training, with nothing loaded before, as a user has it.
    result = mpiexec(1, [copy / "train.py", *argv], env=env, is_loaded=bool(argv))
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize(
    "folder",
    [folder for folder in FOLDERS if folder.name not in WITHOUT_OPTIONS],
    ids=lambda folder: folder.name,
)
def test_a_copy_of_a_folder_tells_its_options(folder, tmp_path):
    if folder.name == "torch_modules":
        pytest.importorskip("torch")
    output = run_copy(folder, tmp_path, "--help")
    assert "usage: train.py" in output
    assert f"examples/{folder.name}/train.py" in output


@pytest.mark.parametrize("name", WITHOUT_OPTIONS)
def test_a_copy_of_a_small_folder_trains(name, tmp_path):
    (folder,) = (folder for folder in FOLDERS if folder.name == name)
    assert len(run_copy(folder, tmp_path).splitlines()) > 4


def test_no_example_imports_from_another():
    for path in Path(ROOT, "examples").rglob("*.py"):
        text = path.read_text()
        assert "import examples" not in text and "from examples" not in text, path
