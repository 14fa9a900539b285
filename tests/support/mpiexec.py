"""Calls functions of test modules on MPI ranks, with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any, Callable

from tests.support.loaded_python import loaded_project, loaded_python
from tests.support.processes import LOAD, ROOT, launcher
from tests.support.ranks import SIZE, Result, close_shared_ranks, shared_ranks

#: Arguments of Python that call a function of a test module.
WORKER = ["-m", "tests.support.mpi_worker"]


def mpiexec(
    n: int,
    argv: list[str],
    timeout: float = 60,
    env: dict[str, str] | None = None,
    *,
    is_loaded: bool = True,
    has_project: bool = False,
) -> subprocess.CompletedProcess:
    """Runs ``python ARGV...`` on ``n`` ranks and returns what came of it.

    Both output streams are in ``stdout``. Fails if the ranks have not all ended
    after ``timeout`` seconds of an idle machine.

    Args:
        n: Number of ranks, each a process of its own.
        argv: Arguments of Python, such as a script and its arguments.
        timeout: Seconds in which it must end, on an idle machine.
        env: Variables to set.
        is_loaded: Whether modules of other projects may be loaded already in these
            processes (`tests.support.loaded_python`), which takes less time.
        has_project: Whether modules of this project may be loaded as well: for scripts
            of which the test looks at what they compute, not at how they begin.

    """
    python = [sys.executable]
    if is_loaded:
        has_project |= list(argv[:2]) == WORKER
        python = loaded_project() if has_project else loaded_python()
    command = [launcher(), "-n", str(n), *python, *map(str, argv)]
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
        output, _ = process.communicate(timeout=LOAD * timeout)
    except subprocess.TimeoutExpired:
        # mpiexec passes SIGTERM on to its ranks, which may be in other sessions.
        process.send_signal(signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        raise AssertionError(
            f"not ended after {LOAD * timeout} s: {command}\n{output}"
        ) from None
    return subprocess.CompletedProcess(command, process.returncode, output)


def worker(function: Callable, *args: Any) -> list[str]:
    """Returns Python's arguments to call ``function(comm, *args)`` on a rank."""
    name = f"{function.__module__}:{function.__name__}"
    return [*WORKER, name, json.dumps(args)]


def on_ranks(
    n: int, function: Callable, *args: Any, timeout: float = 60
) -> subprocess.CompletedProcess:
    """Calls ``function(comm, *args)`` of a test module on ``n`` ranks.

    They are started for it, since it may end them. ``args`` travel as JSON. Asserts
    nothing; look at the result's ``returncode``.
    """
    return mpiexec(n, worker(function, *args), timeout)


def assert_on_ranks(n: int, function: Callable, *args: Any, timeout: float = 60) -> str:
    """Calls ``function(comm, *args)`` on ``n`` ranks, which must succeed on all.

    They are ranks that others have used before and that others will use, if there are
    so many: their start takes longer than most tests.

    Returns:
        What they printed.

    """
    if n > SIZE:
        result = on_ranks(n, function, *args, timeout=timeout)
        assert result.returncode == 0, result.stdout
        assert result.stdout.count("rank done") == n, result.stdout
        return result.stdout
    outcomes, output = shared_ranks().call(n, function, args, timeout)
    if outcomes != ["done"] * n:
        # Who knows what state they are in.
        close_shared_ranks()
    assert outcomes == ["done"] * n, output
    return output


def refused_on_ranks(
    n: int, function: Callable, *args: Any, timeout: float = 20
) -> Result:
    """Calls ``function(comm, *args)`` on ``n`` ranks, on one of which it must fail.

    The others may wait for it, as they would until its exception ends all ranks. That
    it does is not seen here but with `on_ranks`, which takes longer.

    Returns:
        What came of it on each rank, and what they printed, tracebacks included.

    """
    result = shared_ranks().call(n, function, args, timeout)
    assert "failed" in result.outcomes, result
    return result
