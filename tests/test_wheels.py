"""The wheels for hosts without a network."""

import shutil
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

#: Lets a program see no network but its own.
OFFLINE = ["unshare", "--map-root-user", "--net"]


def run(*command, cwd):
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.matrix
def test_wheels_install_without_a_network(tmp_path):
    if subprocess.run([*OFFLINE, "true"], capture_output=True).returncode:
        pytest.skip("a network cannot be taken away here")
    source, host = tmp_path / "source", tmp_path / "host"
    skipped = shutil.ignore_patterns(".*", "build", "dist", "wheels", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=skipped)
    # The environment of the tests collects them; it need not be made for that.
    run("make", "--old-file=install", "wheels", f"VENV={sys.prefix}", cwd=source)
    shutil.copytree(source / "wheels", host / "wheels")
    shutil.copy(ROOT / "examples/first/train.py", host)
    run(*OFFLINE, sys.executable, "-m", "venv", "env", cwd=host)
    wheels = "--no-index", "--find-links", "wheels"
    wanted = "divisible[mpich,examples]"
    run(*OFFLINE, "env/bin/pip", "install", *wheels, wanted, cwd=host)
    assert "test accuracy" in run(*OFFLINE, "env/bin/python", "train.py", cwd=host)
