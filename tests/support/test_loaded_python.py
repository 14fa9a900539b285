"""Python that has loaded modules already runs scripts as a new one does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.loaded_python import LOADED_FOR_FUNCTIONS, LoadedPython
from tests.support.mpiexec import mpiexec
from tests.support.processes import PACKAGES, ROOT


@pytest.fixture(scope="module")
def loaded():
    python = LoadedPython()
    yield python
    python.close()


def run(command, *arguments, **environment):
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        input="typed",
        capture_output=True,
        text=True,
        timeout=300,
    )


HAS_LOADED = "import sys; print('numba' in sys.modules)"


def test_modules_are_loaded_already_and_may_load_others(loaded):
    assert run(loaded.command, "-c", HAS_LOADED).stdout == "True\n"
    # Whatever this variable does, it has not done it when the modules were loaded.
    found = run(loaded.command, "-c", HAS_LOADED, CHAINER_DTYPE="float16")
    assert found.stdout == "False\n"


HAS_PROJECT = """
import sys
print(*(name in sys.modules for name in ("divisible.model", "mpi4py.MPI")))
print(*(sys.modules[n].__file__ for n in PACKAGES if n in sys.modules), sep="\\n")
def fail():
    raise ValueError("no")
fail()
""".replace("PACKAGES", str(PACKAGES))


def test_functions_of_tests_find_this_project_loaded_and_no_mpi(loaded):
    # A server of its own, with the environment of this moment.
    project = LoadedPython(loaded.command, LOADED_FOR_FUNCTIONS)
    found = run(project.command, "-c", HAS_PROJECT)
    project.close()
    first, *files = found.stdout.splitlines()
    assert first == "True False"
    # Another checkout may be installed.
    assert len(files) > 3 and all(Path(f).parents[1] == ROOT for f in files), files
    # As if no server had loaded anything.
    expected = run([sys.executable], "-c", HAS_PROJECT)
    assert found.stderr == expected.stderr
    assert expected.stdout.startswith("False False\n")


FAILS = """
import pipeline
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    raise KeyError("the user's own")
MPI.COMM_WORLD.Barrier()
"""


def test_a_rank_that_fails_ends_all_as_if_it_had_imported_the_project():
    result = mpiexec(2, ["-c", FAILS], has_project=True)
    assert result.returncode != 0
    assert result.stdout.count("ends all ranks") == 1, result.stdout
    assert 'KeyError: "the user\'s own"' in result.stdout


def test_the_kernels_are_those_of_this_repository(loaded):
    where = "import chainer_kernels; print(chainer_kernels.__file__)"
    found = run(loaded.command, "-c", where, PYTHONPATH=str(ROOT))
    assert found.stdout.strip() == str(ROOT / "chainer_kernels" / "__init__.py")


def test_modules_before_all_others_are_loaded(loaded, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('first')")
    found = run(loaded.command, "-c", HAS_LOADED, PYTHONPATH=str(tmp_path))
    assert found.stdout == "first\nFalse\n"


SCRIPT = """
import os, pickle, sys
class Mine:
    pass
def fail():
    raise {error}
print(sys.argv[1:], sys.path[:2], os.getcwd(), sys.stdin.read())
print(__name__, __spec__ is None)
print(type(pickle.loads(pickle.dumps(Mine()))))
fail()
"""


@pytest.mark.parametrize("start", [["script.py"], ["-m", "script"], ["-c"]])
@pytest.mark.parametrize("error", ["ValueError('no')", "SystemExit(3)"])
def test_scripts_do_what_they_do_in_python(loaded, start, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = SCRIPT.format(error=error)
    (tmp_path / "script.py").write_text(text)
    arguments = [*start, *([text] if start == ["-c"] else []), "--option", "1"]
    mine, pythons = (
        run(command, *arguments, PYTHONPATH="packages")
        for command in (loaded.command, [sys.executable])
    )
    assert mine.returncode == pythons.returncode != 0
    assert mine.stdout == pythons.stdout and "'1'] [" in mine.stdout
    assert mine.stderr == pythons.stderr
    assert ("Traceback" in mine.stderr) == ("ValueError" in error)


def test_processes_draw_different_numbers(loaded):
    draw = "import numpy, random; print(numpy.random.rand(), random.random())"
    first, second = (run(loaded.command, "-c", draw).stdout.split() for _ in range(2))
    assert not set(first) & set(second)


def test_the_end_of_a_process_is_that_of_its_stub(loaded):
    end = "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"
    for number in signal.SIGKILL, signal.SIGABRT:
        assert run(loaded.command, "-c", end, int(number)).returncode == -number


WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print(os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_process(loaded, number):
    command = [*loaded.command, "-c", WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stub:
        process = int(stub.stdout.readline())
        assert process != stub.pid
        stub.send_signal(number)
        assert stub.wait(100) == (5 if number == signal.SIGTERM else -number)
        deadline = time.monotonic() + 100
        while os.path.exists(f"/proc/{process}"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
