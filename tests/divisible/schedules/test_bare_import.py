"""Schedules need NumPy alone, and are there at once."""

import pathlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import divisible.schedules
from tests.support.processes import ROOT

SITE = pathlib.Path(np.__file__).parents[1]
#: The start of a program that finds nothing but Python's own modules and a folder.
BARE = "import sys; sys.path.insert(0, sys.argv[1])"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Runs programs where nothing is installed but NumPy and divisible."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "divisible").symlink_to(ROOT / "divisible")
    for part in SITE.glob("numpy*"):
        (folder / part.name).symlink_to(part)

    def run(code):
        done = subprocess.run(
            # Neither the environment's packages nor PYTHONPATH.
            [sys.executable, "-I", "-S", "-B", "-c", f"{BARE}\n{code}", str(folder)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("name", ["chainer", "mpi4py", "numba", "scipy", "matplotlib"])
def test_the_environment_is_bare(bare, name):
    bare(f"import importlib.util; assert importlib.util.find_spec({name!r}) is None")


def test_every_module_is_imported_without_chainer_and_mpi(bare):
    names = [m.name for m in pkgutil.iter_modules(divisible.schedules.__path__)]
    assert "generators" in names
    bare("\n".join(f"import divisible.schedules.{name}" for name in names))


def test_a_schedule_is_made_and_simulated(bare):
    code = """
from divisible import simulate
from divisible.schedules import *
print(simulate(create("zb_h1", 4, 8), Costs(1, 1, 1)).makespan)
"""
    assert bare(code) == "27.0\n"


def test_it_takes_no_time(bare):
    """Compared with NumPy, in time of the processor: no other clock is of use here."""
    code = """
import time
begin = time.process_time()
import numpy
middle = time.process_time()
import divisible.schedules
for name in divisible.schedules.__all__:
    getattr(divisible.schedules, name)
print((time.process_time() - middle) / (middle - begin))
"""
    assert any(float(bare(code)) < 2.5 for _ in range(5))
