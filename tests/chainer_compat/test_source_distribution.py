"""What `pip install` of a source distribution needs beside the packages."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_start_up_files_are_in_it(tmp_path):
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(
            ".*", "*.egg-info", "build", "docs", "tests", "benchmarks"
        ),
    )
    code = "from setuptools import build_meta; print(build_meta.build_sdist('.'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    with tarfile.open(source / done.stdout.splitlines()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "setup.py",
        "constraints.txt",
        "chainer_compat/chainer_compat.pth",
        "chainer_compat/chainer_compat.start",
        "chainer_kernels/chainer_kernels.pth",
        "chainer_kernels/chainer_kernels.start",
    } <= names
