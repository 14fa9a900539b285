"""A worked first change, made in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

PATCHES = ROOT / "docs" / "first_changes"
#: For tests that make one.
NEEDS_GIT = pytest.mark.skipif(
    shutil.which("git") is None, reason="git applies the patch"
)
# Not what Python has compiled, which serves the copy as well.
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "_pictures", "_build", "*.egg-info", "benchmarks"
)


def touched(patch: str) -> list[str]:
    """Returns the files that a patch changes, sorted; it must fit this repository.

    Args:
        patch: The name of a file in ``docs/first_changes``.
    """
    command = "git", "apply", "--check", "--numstat", str(PATCHES / patch)
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return sorted(line.split()[2] for line in result.stdout.splitlines())


class ChangedCopy:
    """A copy of the repository with a change.

    Args:
        folder: Where to make it.
        patch: The name of a file in ``docs/first_changes``.

    Attributes:
        path: Folder of the copy.
    """

    def __init__(self, folder: Path, patch: str) -> None:
        self.path = folder / "repository"
        shutil.copytree(ROOT, self.path, ignore=_LEFT_OUT)
        self.run("git", "apply", str(PATCHES / patch))

    def run(self, *command: object) -> subprocess.CompletedProcess:
        """Runs a command in the copy, which must succeed."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.path),
            # No repository that the copy may lie in.
            "GIT_CEILING_DIRECTORIES": str(self.path.parent),
        }
        result = subprocess.run(
            [*map(str, command)],
            cwd=self.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    def python(self, *arguments: object) -> str:
        """Runs Python in the copy, and returns what it prints."""
        return self.run(sys.executable, *arguments).stdout

    def passed(self, *arguments: object) -> list[str]:
        """Runs tests of the copy, and returns the names of those that have passed."""
        options = "-q", "-rA", "-p", "no:cacheprovider"
        output = self.python("-m", "pytest", *options, *arguments)
        return re.findall(r"^PASSED (\S.*)$", output, re.MULTILINE)
