"""Starts MPI programs for tests, with a deadline, and leaves no process behind."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any, Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent


def mpiexec(
    n: int, argv: list[str], timeout: float = 60, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Runs ``python ARGV...`` on ``n`` ranks and returns what came of it.

    Both output streams are in ``stdout``. Fails if the ranks have not all ended
    after ``timeout`` seconds.
    """
    beside_python = pathlib.Path(sys.executable).parent / "mpiexec"
    launcher = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    assert launcher, "no mpiexec in the environment; see README.md"
    command = [launcher, "-n", str(n), sys.executable, *map(str, argv)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # mpiexec passes SIGTERM on to its ranks, which may be in other sessions.
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        raise AssertionError(
            f"not ended after {timeout} s: {command}\n{output}"
        ) from None
    return subprocess.CompletedProcess(command, process.returncode, output)


def on_ranks(
    n: int, function: Callable, *args: Any, timeout: float = 60
) -> subprocess.CompletedProcess:
    """Calls ``function(comm, *args)`` of a test module on ``n`` ranks.

    ``args`` travel as JSON. Asserts nothing; look at the result's ``returncode``.
    """
    name = f"{function.__module__}:{function.__name__}"
    return mpiexec(n, ["-m", "tests.mpi_worker", name, json.dumps(args)], timeout)


def assert_on_ranks(n: int, function: Callable, *args: Any, timeout: float = 60) -> str:
    """Calls ``function(comm, *args)`` on ``n`` ranks, which must succeed on all."""
    result = on_ranks(n, function, *args, timeout=timeout)
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("rank done") == n, result.stdout
    return result.stdout
