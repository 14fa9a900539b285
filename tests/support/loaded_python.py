"""Starts Python where NumPy, Chainer and Numba are loaded already.

::

    server  ---forks--->  scripts
       |
     forks
       v
    server that has loaded this project, without MPI  ---forks--->  functions of tests
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import python_server, python_stub
from tests.support.processes import ROOT

#: Packages that functions of tests find loaded, but for modules that start MPI.
LOADED_FOR_FUNCTIONS = (
    *("divisible", "mixed_precision", "data_parallel", "heterogeneous"),
    *("pipeline.start", "pipeline.hooks", "pipeline.stages", "pipeline.step"),
    *("pipeline.calls", "pipeline.training", "pipeline.snapshots"),
)


class LoadedPython:
    """A `tests.support.python_server`.

    Args:
        python: Command that stands for Python, which runs the server.
        packages: Packages of this project that it loads.
    """

    def __init__(
        self, python: Sequence[str] = (sys.executable,), packages: Sequence[str] = ()
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name) / "python")
        # Here already: who comes before the server has loaded all waits for it.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            # Chainer loads the kernels, which are to be those that are tested, whatever
            # is installed.
            environment["PYTHONPATH"] = str(ROOT)
            self._process = subprocess.Popen(
                # The listener is its standard output: a stub hands on no other file.
                [*python, python_server.__file__, "1", *packages],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=listener,
                cwd="/",
                start_new_session=True,
            )
        #: Stands before the arguments of Python. With an environment in which modules
        #: may load as something else, this is Python itself.
        self.command = [sys.executable, "-I", "-S", python_stub.__file__, address]
        #: A program of these words, in the place of `sys.executable`.
        self.executable = Path(self._folder.name) / "loaded_python"
        self.executable.write_text(f'#!/bin/sh\nexec {shlex.join(self.command)} "$@"\n')
        self.executable.chmod(0o755)

    def close(self) -> None:
        """Ends it, and what it runs."""
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


_for_scripts: LoadedPython | None = None
_for_functions: LoadedPython | None = None


def loaded_python() -> list[str]:
    """Returns a command that stands for ``[sys.executable]``, and takes less time."""
    return _server_for_scripts().command


def loaded_executable() -> str:
    """Returns the path of a program like `loaded_python`.

    It is for programs that start Python by `sys.executable`.
    """
    return str(_server_for_scripts().executable)


def _server_for_scripts() -> LoadedPython:
    global _for_scripts
    if _for_scripts is None:
        _for_scripts = LoadedPython()
    return _for_scripts


def loaded_project() -> list[str]:
    """Returns a command like `loaded_python` that has loaded this project as well.

    It is for functions of tests, and for scripts of which the test does not look at how
    they import the project.
    """
    global _for_functions
    if _for_functions is None:
        _for_functions = LoadedPython(loaded_python(), LOADED_FOR_FUNCTIONS)
    return _for_functions.command


def close_loaded_python() -> None:
    """Ends the processes behind the two commands, if there are any."""
    global _for_scripts, _for_functions
    for server in (_for_functions, _for_scripts):
        if server is not None:
            server.close()
    _for_scripts = _for_functions = None
