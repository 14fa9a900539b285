"""Processes that tests start, which end with the test."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import IO, Any, Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: The packages of the product.
PACKAGES = (
    "chainer_compat",
    "chainer_kernels",
    "data_parallel",
    "divisible",
    "heterogeneous",
    "mixed_precision",
    "model_compression",
    "pipeline",
    "torch_layers",
)

#: How much longer than on an idle machine anything may take. The seconds of a deadline
#: are those of an idle machine, and are multiplied by this where something waits: what
#: hangs is found on a busy machine as well, and what is only slow passes.
LOAD = 5


#: The variable with the mark of what a test runs, and how much of it is a name.
MARK = "TEST_MARK"
LONGEST_NAME = 15


class Launching:
    """Whether tests may start MPI programs; not with ``--quick``."""

    is_allowed = True


def launcher() -> str:
    """Returns the path of mpiexec: the environment's own, or the system's.

    Whatever starts MPI programs asks here, and is skipped with ``--quick``.
    """
    if not Launching.is_allowed:
        pytest.skip("starts mpiexec")
    beside_python = pathlib.Path(sys.executable).parent / "mpiexec"
    path = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    assert path, "no mpiexec in the environment; see README.md"
    return path


def left_behind() -> set[pathlib.Path]:
    """Returns the memory that MPICH's ranks share and that no process uses any more."""
    files = set(pathlib.Path("/dev/shm").glob("mpich_shm_*"))
    if files:
        used = set()
        for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
            # Some belong to other users, others have just ended.
            with contextlib.suppress(OSError):
                used.update(
                    re.findall(
                        r"/dev/shm/mpich_shm_\w+", maps.read_text(errors="replace")
                    )
                )
        files = {file for file in files if str(file) not in used}
    return files


class Running:
    """An MPI program that runs while the test does something to it.

    Every process of it, on whichever host and in whichever session, inherits a mark
    in its environment, by which it is found. Processes that `python_server` has forked
    have it as their name.
    """

    def __init__(
        self, command: list[str], env: dict[str, str] | None, output: IO
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._output = output
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {}), MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode()

    def processes(self) -> list[int]:
        """Returns the ids of its processes that have not ended."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            # The environment of a process that has ended reads as empty.
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes()
                name = environment and (folder / "comm").read_text().strip()
                if self._mark.encode() in environment or (
                    name == self._mark[:LONGEST_NAME]
                ):
                    found.append(int(folder.name))
        return found

    def wait_for(self, condition: Callable[[], Any], seconds: float) -> Any:
        """Waits until ``condition`` returns something true, and returns that.

        Args:
            condition: Is called every now and then.
            seconds: How long that may take on an idle machine.

        """
        deadline = time.monotonic() + LOAD * seconds
        while True:
            result = condition()
            if result:
                return result
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def wait(self, seconds: float) -> int:
        """Waits until the program and all its processes have ended.

        Returns:
            The exit status of mpiexec.

        """
        self.wait_for(lambda: self.process.poll() is not None, seconds)
        # The launcher's helpers on each host may need a moment more.
        self.wait_for(lambda: not self.processes(), 5)
        return self.process.returncode

    def kill(self) -> None:
        """Ends what is left of it."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(command: list[str], env: dict[str, str] | None = None) -> Iterator[Running]:
    """Starts a command such as ``[launcher(), '-n', '2', ...]``; ends it afterwards."""
    # A file: a pipe would stay open as long as any process holds it.
    with tempfile.TemporaryFile() as output:
        program = Running(command, env, output)
        try:
            yield program
        finally:
            program.kill()
