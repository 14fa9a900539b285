"""Processes with a deadline, in copies of trees, away from the reader's settings."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.common.results import ROOT

#: The first line of an error's text, at the end of a traceback.
ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt|Exit)\b.*$")


def copied(program: Any, trees: Path, place: Path) -> Path:
    """Copies the tree of a repository, and returns the copy.

    Args:
        program: A `Program`, `Model` or `Repository`.
        trees: Folder of all trees.
        place: Where to.

    Raises:
        FileNotFoundError: If the tree is not there.
    """
    tree = trees / program.name
    if not tree.is_dir():
        raise FileNotFoundError(
            f"{tree} is not there. Fetch {program.repository} at {program.commit}"
            " into that folder."
        )
    return shutil.copytree(tree, place, ignore=shutil.ignore_patterns(".git"))


def variables(home: Path, own: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a process: this one's, without what would matter.

    Args:
        home: Home of the process.
        own: Variables to set besides.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "DISPLAY" and not name.startswith("CHAINER_")
    }
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    fixed = {
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "HOME": str(home),
        # Compiled loops are kept where they are otherwise.
        "XDG_CACHE_HOME": cache,
    }
    return {**kept, **fixed, **own}


def run_process(
    command: list[Any], folder: Path, environment: dict[str, str], seconds: float
) -> tuple[int | None, str]:
    """Runs a command, and ends all processes that it has started.

    Returns:
        Its status, or None if its time was up, and what it printed.
    """
    printed = Path(environment["HOME"], "printed.txt")
    with printed.open("wb") as file:
        process = subprocess.Popen(
            [str(each) for each in command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = printed.read_text(errors="replace")
    return status, text.replace(environment["HOME"], "").replace(sys.prefix, "ENV")


def last_line(text: str, status: int | None) -> str:
    """Returns the line that names an error: the first one of the last error's text."""
    if status is None:
        return "not done in time"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    found = (errors or lines or [f"ended with status {status}"])[-1]
    return textwrap.shorten(found, 120, placeholder=" ...")
