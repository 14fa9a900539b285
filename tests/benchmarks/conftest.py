"""The benchmarks are scripts: their folder is on the path as when one is run."""

import sys

import pytest

from tests.support.mpiexec import ROOT


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    yield
    own = {path.stem for path in folder.iterdir()}
    for name in list(sys.modules):
        if name.partition(".")[0] in own:
            del sys.modules[name]
