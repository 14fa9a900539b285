"""A process that has loaded what most scripts import, and forks for each of them.

Started as a script, so that it loads nothing of this repository::

    mpiexec -- stub --request--> server          to load NumPy, Chainer and Numba takes
                 <---status---     |             longer than most scripts that tests run
                                 child: runs the script as Python would
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import struct
import sys
import types
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from typing import NamedTuple

#: Modules of other projects that most scripts import. None of this project: what those
#: do when they are imported is part of what tests look at. Nor MPI, which starts then.
#: A second server, for functions of tests, loads packages of this project as well.
LOADED = (
    *("numpy", "scipy.special", "scipy.linalg", "chainer", "chainer.links"),
    *("chainer.training.extensions", "numba", "sklearn.datasets", "threadpoolctl"),
    *("click", "rich", "mpi4py", "sklearn.model_selection"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "pytest"),
)
#: Variables in whose value a request may differ from the server. Any other one may have
#: changed what modules did when they were loaded. Of launchers those of MPICH are here:
#: with another one, ranks are processes that have loaded nothing. Scikit-learn sets two
#: of OpenMP where it is imported, here as well as in the process of the tests.
MAY_DIFFER = (
    "(PMI|MPI|MPIR|HYDI|HYDRA|GFORTRAN|DIVISIBLE|PYTEST|TEST)_"
    "|(KMP_DUPLICATE_LIB_OK|KMP_INIT_AT_FORK|PYTHONPATH|PWD|OLDPWD|LINES|COLUMNS|_)$"
)
# What modules may have read when they were loaded; some set variables themselves.
_ENVIRONMENT = dict(os.environ)
# The numbers of these options of Linux's prctl.
_SIGNAL_AT_PARENTS_END, _NAME = 1, 15


class Request(NamedTuple):
    """A call of Python, as it comes from a stub."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    #: The namespaces and control groups of the stub.
    place: list[str]
    #: Files of the stub by the number that they have there.
    files: dict[int, int]

    @property
    def can_be_served(self) -> bool:
        """Whether a child of this process runs it as a new process would."""
        names = {*self.environment, *_ENVIRONMENT}
        differ = [
            name
            for name in names
            if self.environment.get(name) != _ENVIRONMENT.get(name)
            and not re.match(MAY_DIFFER, name)
        ]
        folders = self.environment.get("PYTHONPATH", "").split(os.pathsep)
        # Modules that Python imports before anything else.
        first = [os.path.join(folder, "sitecustomize.py") for folder in folders]
        knows = self.arguments[0] in ("-m", "-c") or self.arguments[0][:1] != "-"
        is_here = self.place == place("self")
        return knows and is_here and not differ and not any(map(os.path.exists, first))


def place(process: int | str) -> list[str]:
    """Returns the namespaces and control groups of a process: its emulated host."""
    folder = f"/proc/{process}"
    with open(f"{folder}/cgroup") as groups:
        found = [groups.read()]
    names = sorted(os.listdir(f"{folder}/ns"))
    return [*found, *(os.readlink(f"{folder}/ns/{name}") for name in names)]


def receive(connection: socket.socket) -> Request:
    """Returns the request of a stub."""
    head, files, _, _ = socket.recv_fds(connection, 4, 8)
    (n_bytes,) = struct.unpack("!i", head)
    text = connection.recv(n_bytes, socket.MSG_WAITALL)
    arguments, environment, folder, numbers = json.loads(text)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    where = place(struct.unpack("3i", peer)[0])
    return Request(arguments, environment, folder, where, dict(zip(numbers, files)))


class Server:
    """Forks a child for each request.

    Args:
        listener: Where stubs come from.
        owner: A file that ends with the process that needs this one.
    """

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener, self._owner = listener, owner
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(owner, select.POLLIN)
        # A child's process by its file and by that of its stub.
        self._children: dict[int, tuple[int, socket.socket]] = {}
        self._stubs: dict[int, int] = {}

    def serve(self) -> Request:
        """Serves, and returns in children, each with its request."""
        while True:
            for file, _ in self._poll.poll():
                if file == self._owner:
                    os._exit(0)
                elif file == self._listener.fileno():
                    request = self._accept()
                    if request is not None:
                        return request
                elif file in self._children:
                    self._tell_end(file)
                elif file in self._stubs:
                    self._end_child(file)

    def _accept(self) -> Request | None:
        connection, _ = self._listener.accept()
        request = receive(connection)
        if not request.can_be_served:
            _answer(connection, 0)
            connection.close()
        else:
            process = os.fork()
            if not process:
                self._leave(connection)
                return request
            child = os.pidfd_open(process)
            self._children[child] = process, connection
            self._stubs[connection.fileno()] = child
            self._poll.register(child, select.POLLIN)
            self._poll.register(connection, select.POLLIN)
            _answer(connection, process)
        for file in request.files.values():
            os.close(file)
        return None

    def _leave(self, connection: socket.socket) -> None:
        """Closes in a child what the server has open."""
        connection.close()
        self._listener.close()
        for child, (_, stub) in self._children.items():
            os.close(child)
            stub.close()

    def _end_child(self, stub: int) -> None:
        """Kills a child whose stub has been killed."""
        self._poll.unregister(stub)
        child = self._stubs.pop(stub)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)

    def _tell_end(self, child: int) -> None:
        process, stub = self._children.pop(child)
        _, status = os.waitpid(process, 0)
        if self._stubs.pop(stub.fileno(), None) is not None:
            self._poll.unregister(stub)
            _answer(stub, status)
        stub.close()
        self._poll.unregister(child)
        os.close(child)


def _answer(connection: socket.socket, number: int) -> None:
    # The stub may have been killed.
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("!i", number))


def become(request: Request) -> None:
    """Makes this process what Python would have been when it starts the script."""
    os.setsid()
    prctl = ctypes.CDLL(None).prctl
    prctl(_SIGNAL_AT_PARENTS_END, signal.SIGKILL)
    if "TEST_MARK" in request.environment:
        # The system shows the first environment of a process as long as it lives, which
        # is the server's.
        prctl(_NAME, request.environment["TEST_MARK"].encode())
    for number, file in _out_of_the_way(request.files).items():
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    folders = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.abspath(folder) for folder in folders if folder]
    # Processes that Python starts do not draw the same numbers.
    sys.modules["numpy"].random.seed()
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__builtins__ = sys.modules["builtins"]


def _out_of_the_way(files: dict[int, int]) -> dict[int, int]:
    """Returns copies of files whose numbers no file is to have."""
    import fcntl

    copies = {}
    for number, file in files.items():
        copies[number] = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(files) + 1)
        os.close(file)
    return copies


def run(arguments: list[str]) -> None:
    """Runs a script as Python does; see its command line."""
    first, *others = arguments
    module = sys.modules["__main__"]
    with _failing_as_python():
        if not (first == "-m" and others[0].startswith("tests.")):
            _import_again()
        if first == "-m":
            sys.path.insert(0, os.getcwd())
            sys.argv = ["-m", *others[1:]]
            runpy._run_module_as_main(others[0])
        elif first == "-c":
            sys.path.insert(0, "")
            sys.argv = ["-c", *others[1:]]
            exec(compile(others[0], "<string>", "exec"), vars(module))
        else:
            sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
            sys.argv = arguments
            module.__file__ = path = os.path.abspath(first)
            module.__loader__ = SourceFileLoader("__main__", path)
            with io.open_code(path) as file:
                code = compile(file.read(), path, "exec")
            exec(code, vars(module))


def _import_again() -> None:
    """Does what an import of the pipeline does in ranks, if it is imported already."""
    if "pipeline" in sys.modules:
        launchers = importlib.import_module("divisible.communication.launchers")
        if launchers.is_one_of_several():
            sys.modules["pipeline"].abort_on_error()


@contextlib.contextmanager
def _failing_as_python() -> Iterator[None]:
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        within = error.__traceback__
        while within.tb_next and within.tb_frame.f_code.co_filename in HERE:
            within = within.tb_next
        error = error.with_traceback(within)
        sys.excepthook(type(error), error, within)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


#: Files whose frames a traceback of Python would not show.
HERE = (__file__, contextlib.__file__)


def load_without_mpi(packages: list[str]) -> None:
    """Loads those modules of this repository's packages that do not start MPI."""
    # Another checkout may be installed.
    sys.path.insert(0, os.environ["PYTHONPATH"])
    sys.modules["mpi4py.MPI"] = None
    for package in packages:
        names = [package]
        for name in names:
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue
            parts = pkgutil.iter_modules(getattr(module, "__path__", ()))
            names += [f"{name}.{part.name}" for part in parts if part.name[:2] != "__"]
    del sys.modules["mpi4py.MPI"], sys.path[0]


def main() -> None:
    # The folder of this file, which no script that is run looks into.
    sys.path.pop(0)
    for name in LOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            # Not everything is in every environment.
            continue
    # Scripts look there last, as where this repository is installed to be edited.
    sys.path.remove(os.environ["PYTHONPATH"])
    sys.path.append(os.environ["PYTHONPATH"])
    if "numba" in sys.modules:
        # Numba makes its lists of all that it can compile when it first compiles.
        sys.modules["numba"].njit(lambda number: number + 1)(1)
    load_without_mpi(sys.argv[2:])
    gc.collect()
    # What is loaded stays; children need not look at it.
    gc.freeze()
    listener = socket.socket(fileno=int(sys.argv[1]))
    request = Server(listener, sys.stdin.fileno()).serve()
    become(request)
    run(request.arguments)


if __name__ == "__main__":
    main()
