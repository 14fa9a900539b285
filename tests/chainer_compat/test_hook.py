"""The hook: costs nothing at start-up, edits exactly, says what it did."""

import re
import subprocess
import sys
import warnings
import zipfile
from contextlib import nullcontext
from pathlib import Path

import chainer
import numpy as np
import pytest

import chainer_compat
from chainer_compat import __main__, _finder, _requirements, _shim

ROOT = Path(__file__).resolve().parents[2]


def run_python(*arguments, **options):
    """Runs the interpreter; returns its output; fails with its errors."""
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
    assert result.returncode == 0, result.stderr
    return result


def test_start_up_imports_nothing_but_the_hook():
    # Python has imported os where it reads start-up files.
    plain = "import os, sys; before = set(sys.modules); import chainer_compat; "
    code = plain + "print(sorted(set(sys.modules) - before))"
    result = run_python("-S", "-c", code, cwd=ROOT)
    assert result.stdout.strip() == "['chainer_compat']"


def test_start_up_file_has_run():
    code = "import sys; print('chainer_compat' in sys.modules, 'numpy' in sys.modules)"
    assert run_python("-c", code).stdout.strip() == "True False"


def test_explicit_import_without_start_up_files():
    code = (
        f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}; "
        "assert 'chainer_compat' not in sys.modules; "
        "import chainer_compat, chainer; print(chainer.__version__)"
    )
    assert run_python("-S", "-c", code, cwd=ROOT).stdout.strip() == "7.8.1"


def test_other_names_are_left_to_other_finders():
    for name in ("numpy", "chainerx", "chainercv", "chainer_compat.nothing"):
        assert chainer_compat._Hook.find_spec(name) is None


def test_install_again_changes_nothing():
    before = list(sys.meta_path)
    chainer_compat.install()
    assert sys.meta_path == before


def test_install_after_chainer_warns(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path.remove(chainer_compat._Hook)
    with pytest.warns(RuntimeWarning, match="put 'import chainer_compat' before"):
        chainer_compat.install()


def test_edits_keep_line_numbers():
    for shim in _finder.SHIMS:
        for edit in shim.edits:
            assert edit.old.count("\n") == edit.new.count("\n"), shim.name


@pytest.mark.parametrize("shim", _finder.SHIMS, ids=lambda shim: shim.name)
def test_every_edit_fits_chainer_7_8_1(shim):
    """Also those that are not needed here, such as CuPy's."""
    below = Path(chainer.__file__).parents[1] / shim.module.replace(".", "/")
    path = below / "__init__.py" if below.is_dir() else below.with_suffix(".py")
    edited = shim.apply(path.read_text(encoding="utf8"))
    compile(edited, str(path), "exec")


def test_other_text_is_reported_not_edited():
    edit = _shim.Edit("numpy.float", "float", count=2)
    with pytest.raises(_shim.TextNotFound, match="occurs 1 times instead of 2"):
        edit.apply("numpy.float")


def test_failed_shim_warns_with_name_and_file(tmp_path):
    package = tmp_path / "chainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_environment_check.py").write_text("answer = 42\n")
    code = (
        "import chainer_compat, chainer._environment_check as c; print(c.answer); "
        "print([s.state for s in chainer_compat.report()][0])"
    )
    result = run_python("-W", "default", "-c", code, env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout.split() == ["42", "FAILED"]
    assert "environment-check was not applied to" in result.stderr
    assert "is this Chainer 7.8.1?" in result.stderr


def test_conditions():
    assert _shim.since("numpy", "1.0")() is None
    assert _shim.since("numpy", "99.0")().startswith("numpy ")
    assert _shim.since("no_such_package", "1.0")() == "no_such_package is not installed"
    assert _shim.release("2.0.1rc1") == (2, 0, 1)
    assert _shim.release("2.10") > _shim.release("2.9.1")


@pytest.mark.parametrize(
    "requirement, met",
    [
        ("numpy", True),
        ("numpy>=1.10,<99", True),
        ("numpy!=1.11.*", True),
        ("numpy<1.14", False),
        ("numpy==1.*,>=2", False),
        ("no-such-distribution", False),
    ],
)
def test_requirements(requirement, met):
    assert _requirements._is_met(requirement) is met


def test_report_names_every_shim_once():
    names = [status.name for status in chainer_compat.report()]
    assert len(names) == len(set(names)) == len(_finder.SHIMS)
    assert not [s for s in chainer_compat.report() if s.state == _shim.FAILED]


def test_report_imports_no_mpi():
    code = (
        "import sys, chainer_compat; chainer_compat.report(); "
        "print([m for m in sys.modules if m.startswith(('chainermn', 'mpi4py'))])"
    )
    assert run_python("-c", code).stdout.strip() == "[]"


def test_module_says_what_it_is_for():
    output = run_python("-m", "chainer_compat", "--help").stdout
    assert output.startswith("usage: python -m chainer_compat")
    assert "MPI library" not in output


def test_module_prints_report():
    output = run_python("-W", "error", "-m", "chainer_compat").stdout
    assert "Chainer      7.8.1" in output
    assert "MPI library" in output
    for shim in _finder.SHIMS:
        assert shim.name in output


@pytest.mark.matrix
def test_wheel_delivers_start_up_files(tmp_path):
    run_python(
        *("-m", "pip", "wheel", "--quiet", "--no-deps"),
        *("--wheel-dir", str(tmp_path), str(ROOT)),
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("chainer_compat.pth", "chainer_compat.start"):
        assert [n for n in names if n.endswith("purelib/" + name)]


@pytest.mark.parametrize(
    "version, needed",
    [
        ("1.22.4", []),
        ("1.24.0", ["1.24"]),
        ("2.0.2", ["2.0", "1.24"]),
        ("2.4.0", ["2.4", "2.3", "2.0", "1.24"]),
    ],
)
def test_module_prints_what_an_older_numpy_cures(version, needed, capsys):
    __main__.print_limits(version)
    text = capsys.readouterr().out
    assert re.findall(r"needs NumPy below ([\d.]+)", text) == needed
    assert not needed or f"make install NUMPY='<{needed[0]}'" in text


def test_limits_are_those_of_this_numpy():
    tries = {
        "2.4": lambda: float(np.zeros(1)),
        "2.3": lambda: np.zeros(1).tostring(),
        "2.0": lambda: (np.zeros(1).itemset(1), np.zeros(1).ptp()),
        "1.24": lambda: np.array([[1, 2], [3]]),
    }
    assert list(tries) == list(__main__.LIMITS)
    for version, attempt in tries.items():
        refused = _shim.release(np.__version__) >= _shim.release(version)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            errors = (TypeError, ValueError, AttributeError)
            with pytest.raises(errors) if refused else nullcontext():
                attempt()
