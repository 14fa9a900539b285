"""Chainer's own scripts and their ports, run on ranks with small data."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.chainer_scripts.port import FILES
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

FOLDER = ROOT / "examples" / "chainer_scripts"
CHAINER_SRC = os.environ.get("CHAINER_SRC")
needs_chainer = pytest.mark.skipif(
    not CHAINER_SRC, reason="CHAINER_SRC names no source tree of Chainer 7.8.1"
)
# Runs a script with weights that depend on their shapes only: what each process draws
# at random is its own.
_DRIVER = """
import runpy, sys, zlib
import chainer, numpy
def fill(self, array):
    rng = numpy.random.RandomState(zlib.crc32(repr(array.shape).encode()))
    array[...] = rng.normal(0, self.scale, array.shape)
chainer.initializers.Normal.__call__ = fill
numpy.random.seed(4)
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rsplit("/", 1)[0]
{before}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: Dropout draws other numbers in a pipeline than in one process.
NO_DROPOUT = "chainer.functions.dropout = lambda h, *args, **kwargs: h"


def run_port(source: str | Path, out: Path) -> subprocess.CompletedProcess:
    """Runs ``port.py`` on a source tree."""
    return subprocess.run(
        [sys.executable, FOLDER / "port.py", source, out],
        capture_output=True,
        text=True,
        timeout=60,
    )


def originals_and_ported(folder: Path) -> tuple[Path, Path]:
    """Returns where the originals are, and what the program makes of them."""
    originals, ported = folder / "originals", folder / "ported"
    result = run_port(CHAINER_SRC, ported)
    assert result.returncode == 0, result.stderr
    for source, target, _ in FILES:
        path = originals / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(CHAINER_SRC) / source, path)
    return originals, ported


def run_script(
    n: int, script: Path, arguments: list, data: Path, before: str = NO_DROPOUT
) -> str:
    """Returns what a script prints on ``n`` ranks.

    Args:
        n: How many ranks.
        script: Its path.
        arguments: Of the script.
        data: Where Chainer looks for its downloads.
        before: Python code that runs before it, in which ``chainer``, ``numpy``,
            ``sys`` are modules.

    """
    argv = ["-c", _DRIVER.format(before=before), script, *arguments]
    # An editable install would find the packages, another one may not.
    env = {"CHAINER_DATASET_ROOT": str(data), "PYTHONPATH": str(ROOT)}
    result = mpiexec(n, argv, timeout=120, env=env)
    assert result.returncode == 0, result.stdout
    return result.stdout


def make_mnist(root: Path, n_train: int = 90, n_test: int = 40) -> None:
    """Leaves random images of MNIST's shape where Chainer keeps its downloads."""
    rng = np.random.RandomState(0)
    folder = root / "pfnet/chainer/mnist"
    folder.mkdir(parents=True)
    for file, n in (("train.npz", n_train), ("test.npz", n_test)):
        x = rng.randint(0, 256, (n, 784)).astype(np.uint8)
        np.savez(folder / file, x=x, y=rng.randint(0, 10, n).astype(np.uint8))


def make_cifar(root: Path, n_train: int = 30, n_test: int = 19) -> None:
    """Leaves random images of CIFAR-10's shape there."""
    rng = np.random.RandomState(0)
    folder = root / "pfnet/chainer/cifar"
    folder.mkdir(parents=True)
    sets = {}
    for file, n in (("train", n_train), ("test", n_test)):
        sets[f"{file}_x"] = rng.randint(0, 256, (n, 3072)).astype(np.uint8)
        sets[f"{file}_y"] = rng.randint(0, 10, n).astype(np.uint8)
    np.savez(folder / "cifar-10.npz", **sets)


def assert_logs_equal(found: list[dict], expected: list[dict], rtol=1e-5) -> None:
    """Compares logs, value by value; the found one may have more."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        for key in set(theirs) - {"elapsed_time"}:
            np.testing.assert_allclose(ours[key], theirs[key], rtol, err_msg=key)
