"""Compiled code on disk: where it is kept, and how it is read.

::

    ~/.cache/chainer_kernels/      nobody else may write there, for its code is run
        znver3-py311-numba0.60.0-0123456789ab/
            loops.softmax.softmax_rows-4d1c....nbc   a digest, and what Numba pickles
            loops.softmax.softmax_rows.lock          held by the process that compiles

There is one directory for each kind of processor, version of Numba and content of these
modules. So if jobs on several machines with one home write the same file, they write
the same bytes. The ranks of a host wait for the one that compiles.

A file is there completely or not at all. A damaged one, as a power failure leaves it,
has another digest. Numba never loads it: the code is compiled again, and replaces it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import inspect
import os
import pickle
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numba
from llvmlite import binding
from numba.core.caching import NullCache, _cache_log
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from chainer_compat.own_directory import own_directory

#: Names a directory to keep compiled code in.
VARIABLE = "CHAINER_KERNELS_CACHE"
#: The name by which a module that is in no file has its own text.
SOURCE = "__source__"
_PACKAGE = Path(__file__).parent
#: The folder of our packages, which differs between environments and checkouts.
_ROOT = _PACKAGE.parent
#: Modules with compiled code, beside ``loops``, or with what Numba is told of it.
_MODULES = (
    "code_cache",
    "compiling",
    "float16_bits",
    "float8_bits",
    "optimizer_loops_cpu",
)
_UNUSED_SECONDS = 30 * 24 * 3600
#: Seconds after which a process compiles what another one has not finished.
_LONGEST_COMPILATION = 60
_MAGIC = b"chainer_kernels code 1\n"
_DIGEST_BYTES = 32
_LONGEST_NAME = 100


class KeptCode(NullCache):
    """The code of a function, one file for each signature; Numba asks for it.

    Whatever is wrong with a file, the code is compiled, and nothing worse happens.

    Args:
        function: The function.
        folder: Where its code is kept.

    Raises:
        OSError: If the function's module is in no file, and has no text of itself.
    """

    def __init__(self, function: Callable, folder: str) -> None:
        self._function = function
        self._folder = folder
        self._place = inspect.getfile(function)
        text = function.__globals__.get(SOURCE)
        self._stamp = _digest_of_file(self._place) if text is None else _digest(text)
        name = f"{function.__module__}.{function.__qualname__}"
        self._name = re.sub(r"[^\w.-]", "_", name)[-_LONGEST_NAME:]
        self._lock: contextlib.ExitStack | None = None

    @property
    def cache_path(self) -> str:
        """The directory."""
        return self._folder

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Makes other processes wait while a block compiles."""
        with contextlib.ExitStack() as stack:
            self._lock = stack
            try:
                yield
            finally:
                self._lock = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns code; ``None`` if there is none, or the file is damaged."""
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        found = self._found(key, target_context)
        if found is None and self._lock is not None:
            _wait_in_turn(self._lock, f"{self._folder}/{self._name}.lock")
            found = self._found(key, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps code, unless the disk is full."""
        has_addresses = data.library.has_dynamic_globals
        if has_addresses or not all(each.can_cache for each in data.lifted):
            return
        key = self._key(sig, data.codegen)
        content = dumps((key, self._stamp, data._reduce()))
        try:
            _write(self._path(key), content)
            # Printed where Numba's NUMBA_DEBUG_CACHE asks for it.
            _cache_log("[cache] data saved to %r", self._path(key))
        except OSError as error:
            _warn_once(
                f"chainer_kernels compiles its loops at every start: they cannot be"
                f" kept in {self._folder} ({error.strerror}). Free some space, or name"
                f" another directory in {VARIABLE}"
            )

    def _key(self, sig: Any, codegen: Any) -> tuple:
        """Returns what the code depends on besides the module's text."""
        code, closure = self._function.__code__, self._function.__closure__
        within = dumps([cell.cell_contents for cell in closure or ()])
        place = _known_place(self._place), code.co_firstlineno
        return sig, codegen.magic_tuple(), place, code.co_code, within

    def _path(self, key: tuple) -> str:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:20]
        return f"{self._folder}/{self._name}-{digest}.nbc"

    def _found(self, key: tuple, target_context: Any) -> Any:
        content = _content(self._path(key))
        if content is None:
            return None
        # A pickle fails in many ways where what it names has changed.
        with contextlib.suppress(Exception):
            of, stamp, kept = pickle.loads(content)
            if (of, stamp) == (key, self._stamp):
                _cache_log("[cache] data loaded from %r", self._path(key))
                return CompileResult._rebuild(target_context, *kept)
        return None


def _known_place(path: str) -> str:
    """Returns the path of a module; of ours, the same one in all environments."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(_ROOT))
    return path


@functools.cache
def _digest_of_file(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _write(path: str, content: bytes) -> None:
    """Writes a file, whole or not at all."""
    handle, aside = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(content).digest() + content)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def _content(path: str) -> bytes | None:
    """Returns what is in a file, if it is as this user wrote it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not stat.S_ISREG(status.st_mode) or not is_own:
            return None
        return _whole(file.read())


def _whole(data: bytes) -> bytes | None:
    """Returns what a file holds besides its digest, if that is right."""
    end = len(_MAGIC) + _DIGEST_BYTES
    content = data[end:]
    digest = hashlib.sha256(content).digest()
    return content if data[:end] == _MAGIC + digest else None


@functools.cache
def cache_directory() -> str | None:
    """Returns where compiled loops are kept; ``None``, with a warning, if nowhere.

    The directory is that of ``CHAINER_KERNELS_CACHE``, or of the user's cache. It is
    used only if no other user could have written to it.
    """
    try:
        path = _base() / _version()
        is_new = not path.is_dir()
        path = own_directory(path)
        if is_new:
            _remove_unused(path.parent)
        os.utime(path)
        with tempfile.TemporaryFile(dir=path):
            return str(path)
    except OSError as error:
        # Without a number it is a sentence of ours.
        cause = f"cannot write to {error.filename} ({error.strerror})"
        warnings.warn(
            f"chainer_kernels compiles its loops at every start:"
            f" {cause if error.errno else error}; name a directory in {VARIABLE}",
            stacklevel=2,
        )
        return None


def _base() -> Path:
    """Returns the directory for code of all kinds of processors."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that other paths are to be ignored.
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache")
    if not os.path.isabs(home):
        raise FileNotFoundError("this user has no home directory to keep them in")
    return Path(home, "chainer_kernels")


def _version() -> str:
    """Returns a name that changes with whatever compiled code depends on."""
    facts = hashlib.sha256()
    # A loop may have inlined functions of these modules. Numba compares the loop's own
    # module itself.
    own = [_PACKAGE / f"{name}.py" for name in _MODULES]
    for path in [*own, *sorted(_PACKAGE.glob("loops/*.py"))]:
        facts.update(path.read_bytes())
    # The features of a processor, not its name alone: virtual machines hide some.
    facts.update(binding.get_host_cpu_features().flatten().encode())
    python = "".join(map(str, sys.version_info[:2]))
    name = binding.get_host_cpu_name()
    return f"{name}-py{python}-numba{numba.__version__}-{facts.hexdigest()[:12]}"


def _remove_unused(base: Path) -> None:
    """Removes directories of other versions that nobody has used for long."""
    for path in base.iterdir():
        with contextlib.suppress(OSError):
            status = path.lstat()
            if (
                re.fullmatch(r".+-py\d+-numba.+-[0-9a-f]{12}", path.name)
                and status.st_uid == os.geteuid()
                and status.st_mtime < time.time() - _UNUSED_SECONDS
            ):
                shutil.rmtree(path)


class _Waiting:
    """Whether this process still waits for others that compile."""

    is_sensible = True


def _wait_in_turn(stack: contextlib.ExitStack, path: str) -> None:
    """Locks a file until a stack is closed. An end of the process unlocks it.

    Only time depends on the lock, for files are replaced whole. A process that gets
    none compiles what another one does.
    """
    if not _Waiting.is_sensible:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o600)
        stack.callback(os.close, file)
        _lock(file)
    except OSError as error:
        _Waiting.is_sensible = False
        _warn_once(
            f"ranks of a host compile the same loops, each for itself: {path} cannot be"
            f" locked ({error.strerror}). Name a directory on a local disk in"
            f" {VARIABLE}"
        )


def _lock(file: int) -> None:
    end = time.monotonic() + _LONGEST_COMPILATION
    while time.monotonic() < end:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
    raise TimeoutError(
        errno.ETIMEDOUT, f"another process holds it for {_LONGEST_COMPILATION} s"
    )


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=3)
