"""An environment for each set of packages, beside this project and not in it.

A virtual environment finds this project's packages behind its own, so that only what a
repository needs besides is installed, and nothing is installed into this project's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from benchmarks.common.results import ROOT

#: Packages whose archive is only unpacked, since they have an extension that no longer
#: builds; and a module that says that there is none, by its path, in two lines.
UNPACKED = {"chainercv": "utils/bbox/_nms_gpu_post.py"}


def environment(
    folder: Path, packages: tuple[str, ...], seconds: float
) -> tuple[Path, str]:
    """Makes an environment of these packages, or finds the one that is there.

    Args:
        folder: Folder of all environments.
        packages: Packages from PyPI, with conditions.
        seconds: Deadline of the installation.

    Returns:
        Its interpreter, and the last line of what failed, or nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join(re.sub("[^a-z0-9]", "", each.lower()) for each in packages)
    with (folder / f"{name or 'none'}.lock").open("w") as lock:
        # Two runs may want the same one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _environment(folder / (name or "none"), packages, seconds)


def _environment(folder, packages, seconds) -> tuple[Path, str]:
    python = folder / "bin" / "python"
    done = folder / "installed.txt"
    if done.exists():
        return python, ""
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True
    )
    # The .pth files of this project count there too.
    below = sysconfig.get_paths()["purelib"]
    (own,) = folder.glob("lib/*/site-packages")
    line = f"import site; site.addsitedir({below!r})\n"
    (own / "packages_below.pth").write_text(line)
    failure = ""
    usual = [each for each in packages if each not in UNPACKED]
    if len(usual) < len(packages):
        # An archive is not unpacked before its metadata were made.
        usual.append("wheel")
    if usual:
        failure = _pip(python, seconds, "install", *usual)
    for package in UNPACKED.keys() & set(packages):
        failure = failure or _unpack(python, package, own, seconds)
    if not failure:
        done.write_text("\n".join(packages))
    return python, failure


def _unpack(python: Path, package: str, own: Path, seconds: float) -> str:
    """Unpacks a package's archive among the others; returns an error, if any."""
    options = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:")
    with tempfile.TemporaryDirectory() as folder:
        failure = _pip(python, seconds, "download", *options, package, "-d", folder)
        if failure:
            return failure
        (archive,) = Path(folder).glob("*.tar.gz")
        shutil.unpack_archive(archive, f"{folder}/unpacked")
        (top,) = Path(folder, "unpacked").iterdir()
        shutil.move(top / package, own / package)
        # With its version.
        shutil.move(top / f"{package}.egg-info", own / f"{package}.egg-info")
    module = own / package / UNPACKED[package]
    module.write_text(f"{module.stem} = None\n")
    return ""


def _pip(python: Path, seconds: float, verb: str, *arguments: str) -> str:
    """Runs pip; returns the last line of its error."""
    constraint = f"file://{ROOT}/constraints.txt"
    variables = {
        **os.environ,
        "PIP_CONSTRAINT": constraint,
        "PIP_BUILD_CONSTRAINT": constraint,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # Nothing is ever installed anywhere else.
        "PIP_REQUIRE_VIRTUALENV": "1",
    }
    try:
        done = subprocess.run(
            [python, "-m", "pip", verb, "--quiet", *arguments],
            env=variables,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=python.parent,
        )
    except subprocess.TimeoutExpired:
        return "not installed in time"
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return (lines or ["not installed"])[-1] if done.returncode else ""
