"""Starts Python where NumPy, Chainer and Numba are loaded already."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import python_server, python_stub
from tests.support.processes import ROOT


class LoadedPython:
    """A `tests.support.python_server`, which starts with the first use."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name) / "python")
        # Here already: who comes before the server has loaded all waits for it.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            file = listener.fileno()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            # Chainer loads the kernels, which are to be those that are tested, whatever
            # is installed.
            environment["PYTHONPATH"] = str(ROOT)
            self._process = subprocess.Popen(
                [sys.executable, python_server.__file__, str(file)],
                pass_fds=[file],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        #: Stands before the arguments of Python. With an environment in which modules
        #: may load as something else, this is Python itself.
        self.command = [sys.executable, "-I", "-S", python_stub.__file__, address]

    def close(self) -> None:
        """Ends it, and what it runs."""
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


_shared: LoadedPython | None = None


def loaded_python() -> list[str]:
    """Returns a command that stands for ``[sys.executable]``, and takes less time."""
    global _shared
    if _shared is None:
        _shared = LoadedPython()
    return _shared.command


def close_loaded_python() -> None:
    """Ends the process behind `loaded_python`, if there is one."""
    global _shared
    if _shared is not None:
        _shared.close()
        _shared = None
