"""A file system that fails: calls of the operating system, one of which goes wrong.

Every call is counted that this process makes to a file or a directory below some
directory, whether by ``os``, ``open``, ``pathlib`` or ``shutil``. The k-th one raises
an error, is cut short, or ends the process::

    save --> open, numpy.savez, Path.rename, shutil.rmtree, ...
         --> os.* and io.FileIO, which FaultyFiles stands in for
         --> the operating system
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import pathlib
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

_OF_PATHS = (
    "access",
    "link",
    "listdir",
    "lstat",
    "mkdir",
    "open",
    "readlink",
    "remove",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "stat",
    "statvfs",
    "symlink",
    "truncate",
    "unlink",
    "utime",
)
_OF_DESCRIPTORS = (
    "close",
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "pread",
    "pwrite",
    "read",
    "write",
)
_CHANGING = {
    *("close", "fdatasync", "fsync", "ftruncate", "link", "mkdir", "open", "pwrite"),
    *("remove", "rename", "replace", "rmdir", "symlink", "truncate", "unlink", "utime"),
    "write",
}
_NAMING = _CHANGING - {"close", "fdatasync", "fsync", "open", "pwrite", "write"}
_ALL = {*_OF_PATHS, *_OF_DESCRIPTORS}
#: By name of an error the calls that may raise it.
ERRORS = {
    "EIO": _ALL,
    "ESTALE": _ALL,
    "EACCES": {*_OF_PATHS},
    "EMFILE": {"listdir", "open", "scandir"},
    "ENOMEM": _ALL - {"close", "fsync"},
    "ENOSPC": _CHANGING - {"remove", "rmdir", "unlink"},
    "EDQUOT": _CHANGING - {"remove", "rmdir", "unlink"},
    # Python repeats the others itself.
    "EINTR": _NAMING,
}
#: What happens to a call besides errors, and to which calls: it reads or writes less
#: than it is asked to; the process ends before it; after it has written a part; and all
#: is lost with it that was not flushed.
SHORT, DIES, TORN, POWER = "short", "dies", "torn", "power loss"
KINDS = {
    **ERRORS,
    SHORT: {"read", "write"},
    DIES: _CHANGING,
    TORN: {"write"},
    POWER: _CHANGING,
}


class Call(NamedTuple):
    """A call of the operating system.

    Attributes:
        name: Of the function.
        path: What it is for; of two the second.
        source: Of two the first.
    """

    name: str
    path: str
    source: str | None = None


class Fault(NamedTuple):
    """A fault to inject.

    Attributes:
        kind: One of `KINDS`.
        at: Which call goes wrong, from 0 on.
        lasts: Whether all calls after it do as well that may.
    """

    kind: str
    at: int
    lasts: bool = False

    def __str__(self) -> str:
        return f"{self.kind} at call {self.at}{' and after it' if self.lasts else ''}"


class FaultyFiles:
    """Counts calls, and lets some go wrong.

    Args:
        folder: Below it, or it itself, is what calls are for that count.
        fault: What to inject; ``None`` for nothing.

    Attributes:
        calls (list of Call): The calls so far.
        injected (list of Call): Those that went wrong.
    """

    def __init__(self, folder: str | os.PathLike, fault: Fault | None = None) -> None:
        self._folder = os.path.abspath(folder)
        self._fault = fault
        self._descriptors: dict[int, str] = {}
        self._lock = threading.Lock()
        self._is_on = True
        self.calls: list[Call] = []
        self.injected: list[Call] = []

    def path_of(self, thing: Any, dir_fd: int | None = None) -> str | None:
        """Returns the path of what a call is for, if it counts."""
        if isinstance(thing, int):
            return self._descriptors.get(thing)
        try:
            path = os.fsdecode(os.fspath(thing))
        except TypeError:
            return None
        if dir_fd is not None:
            path = os.path.join(self._descriptors.get(dir_fd, "/"), path)
        path = os.path.abspath(path)
        is_inside = path == self._folder or path.startswith(self._folder + os.sep)
        return path if is_inside else None

    def goes_wrong(self, name: str, path: str, source: str | None = None) -> str | None:
        """Counts a call; returns what happens to it, if it is no error.

        Raises:
            OSError: If that is what happens.
        """
        with self._lock:
            number = len(self.calls)
            self.calls.append(Call(name, path, source))
        fault = self._fault
        if fault is None or not self._is_on or name not in KINDS[fault.kind]:
            return None
        if number != fault.at and not (fault.lasts and number > fault.at):
            return None
        self.injected.append(Call(name, path))
        if fault.kind == POWER:
            self._is_on = False
            lose_unflushed(self.calls[:-1])
        if fault.kind in (DIES, POWER):
            die()
        if fault.kind in ERRORS:
            code = getattr(errno, fault.kind)
            has_path = name not in _OF_DESCRIPTORS
            raise OSError(code, os.strerror(code), *([path] if has_path else []))
        return fault.kind

    def opened(self, descriptor: int, path: str) -> None:
        """Notes which file a descriptor is of."""
        self._descriptors[descriptor] = path

    def closed(self, descriptor: int) -> None:
        """Forgets a descriptor."""
        self._descriptors.pop(descriptor, None)

    def turn_off(self) -> None:
        """Lets files that are still open be as they are."""
        self._is_on = False


def die() -> None:
    """Ends this process at once, as a machine that fails does."""
    os.kill(os.getpid(), signal.SIGKILL)


def lose_unflushed(calls: Sequence[Call]) -> None:
    """Does to files what a loss of power may do after some calls.

    Of these no ``mkdir`` has found the directory there already.

    What was written to a file and not flushed is lost, and so is a new name, of a new
    directory as well, if the directory that has it was not flushed.
    """
    written: list[str] = []
    renamed: list[Call] = []
    made: list[str] = []
    for call in calls:
        if call.name == "write":
            written.append(call.path)
        elif call.name == "fsync":
            written = [path for path in written if path != call.path]
            renamed = [c for c in renamed if os.path.dirname(c.path) != call.path]
            made = [path for path in made if os.path.dirname(path) != call.path]
        elif call.name == "mkdir":
            made.append(call.path)
        elif call.name in ("rename", "replace"):
            renamed.append(call)
            written = [_moved(path, call) for path in written]
            made = [_moved(path, call) for path in made]
    for path in written:
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    for call in reversed(renamed):
        with contextlib.suppress(OSError):
            os.rename(call.path, str(call.source))


def _moved(path: str, rename: Call) -> str:
    """Returns the path that a file has after a rename."""
    inside = f"{path}{os.sep}".startswith(f"{rename.source}{os.sep}")
    return rename.path + path[len(str(rename.source)) :] if inside else path


@contextlib.contextmanager
def faulty(
    folder: str | os.PathLike, fault: Fault | None = None
) -> Iterator[FaultyFiles]:
    """Lets a block, in all threads, have a file system that may fail."""
    files = FaultyFiles(folder, fault)
    with contextlib.ExitStack() as stack:
        stack.callback(files.turn_off)
        raw = _raw_file(files)
        stand_ins = {open: _open_with(files, raw)}
        for name in (*_OF_PATHS, *_OF_DESCRIPTORS):
            stand_ins[getattr(os, name)] = _stand_in(files, name)
        # Before Python 3.11 pathlib has the functions in a class of its own.
        for owner in (os, io, builtins, getattr(pathlib, "_NormalAccessor", None)):
            for name in list(vars(owner)) if owner is not None else ():
                new = stand_ins.get(_hashable(getattr(owner, name)))
                if new is not None:
                    new = staticmethod(new) if isinstance(owner, type) else new
                    stack.enter_context(_replaced(owner, name, new))
        for owner, name, kind in _raw_files_of_ours():
            stack.enter_context(_replaced(owner, name, type(name, (kind, raw), {})))
        yield files


def _hashable(thing: Any) -> Any:
    return thing if callable(thing) else None


@contextlib.contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = vars(owner)[name]
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def _stand_in(files: FaultyFiles, name: str) -> Callable:
    function = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        # Of two paths the second is the one that appears.
        index = 1 if name in ("rename", "replace", "link", "symlink") else 0
        dir_fd = options.get("dst_dir_fd" if index else "dir_fd")
        things = [args[index]] if len(args) > index else [options.get("path", ".")]
        path = files.path_of(things[0], dir_fd)
        if path is None:
            return function(*args, **options)
        source = files.path_of(args[0], options.get("src_dir_fd")) if index else None
        try:
            what = files.goes_wrong(name, path, source)
        except OSError:
            if name == "close":
                # The descriptor is gone whatever the call returns.
                files.closed(args[0])
                function(*args)
            raise
        if what == SHORT:
            descriptor, amount, *others = args
            less = amount // 2 if isinstance(amount, int) else _half(amount)
            return function(descriptor, less or 1, *others)
        if what == TORN:
            function(args[0], _half(args[1]), *args[2:])
            die()
        result = function(*args, **options)
        if name == "open":
            files.opened(result, path)
        elif name == "close":
            files.closed(args[0])
        return result

    return call


def _half(data: Any) -> memoryview:
    view = memoryview(data).cast("B")
    return view[: max(1, len(view) // 2)]


def _raw_file(files: FaultyFiles) -> type:
    class RawFile(io.FileIO):
        """A file without a buffer, each call of which may go wrong."""

        def __init__(self, file: Any, mode: str = "r", *args: Any, **opts: Any) -> None:
            # One that was opened already, or by an opener, has been counted.
            has_opener = bool(opts.get("opener") or len(args) > 1 and args[1])
            self._path = files.path_of(file)
            if self._path and not isinstance(file, int) and not has_opener:
                files.goes_wrong("open", self._path)
            super().__init__(file, mode, *args, **opts)
            if self._path:
                files.opened(self.fileno(), self._path)

        def readinto(self, buffer: Any) -> int | None:
            what = self._path and files.goes_wrong("read", self._path)
            return super().readinto(_half(buffer) if what == SHORT else buffer)

        def readall(self) -> bytes:
            if self._path:
                files.goes_wrong("read", self._path)
            return super().readall()

        def write(self, data: Any) -> int | None:
            what = self._path and files.goes_wrong("write", self._path)
            if what == TORN:
                super().write(_half(data))
                die()
            return super().write(_half(data) if what == SHORT else data)

        def close(self) -> None:
            if self.closed:
                return
            try:
                if self._path:
                    files.closed(self.fileno())
                    files.goes_wrong("close", self._path)
            finally:
                super().close()

    return RawFile


def _open_with(files: FaultyFiles, raw_file: type) -> Callable:
    real_open = builtins.open

    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if files.path_of(file) is None:
            return real_open(
                file, mode, buffering, encoding, errors, newline, closefd, opener
            )
        plain = mode.replace("b", "").replace("t", "")
        raw = raw_file(file, plain, closefd=closefd, opener=opener)
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering < 2 else buffering
        if "+" in mode:
            buffered: Any = io.BufferedRandom(raw, size)
        elif "r" in mode:
            buffered = io.BufferedReader(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    return open


def _raw_files_of_ours() -> list[tuple[Any, str, type]]:
    """Returns where our modules have a class of files without a buffer."""
    found = []
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("divisible", "pipeline", "chainer_compat"):
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and issubclass(value, io.FileIO):
                    found.append((module, name, value))
    return found
