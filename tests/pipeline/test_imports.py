"""What importing parts of the package takes, and needs."""

import subprocess
import sys

import pytest


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "part, heavy, is_package",
    [
        ("divisible.schedules", {"chainer", "mpi4py", "numba", "matplotlib"}, True),
        ("pipeline.stages", {"mpi4py", "matplotlib"}, True),
    ],
)
def test_what_is_not_needed(part, heavy, is_package):
    code = f"""
import importlib, pkgutil, sys

before = set(sys.modules)
part = importlib.import_module("{part}")
paths = getattr(part, "__path__", [])
for module in pkgutil.iter_modules(paths):
    print(importlib.import_module(f"{part}.{{module.name}}"))
sys.exit(", ".join({heavy} & (set(sys.modules) - before)) or 0)
"""
    assert bool(run(code)) == is_package


def test_each_module_can_be_the_first():
    """None needs another one that needs it."""
    code = """
import importlib, pkgutil, sys
import pipeline

for module in list(pkgutil.walk_packages(pipeline.__path__, "pipeline.")):
    for name in [name for name in sys.modules if name.startswith("pipeline")]:
        del sys.modules[name]
    importlib.import_module(module.name)
    print(module.name)
"""
    assert len(run(code)) > 30
