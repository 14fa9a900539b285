"""Loops that are compiled when they are called first, and kept on disk.

Numba compiles a loop for the types it is called with, in the middle of a training step,
and once more for every other memory order. A :class:`Loop` has one signature, of
contiguous arrays, and no other.

The code is kept in one directory for each kind of processor, version of Numba and
content of these modules, so jobs on several machines with one home write the same bytes
to a file, if any. The ranks of a host wait for the one that compiles.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import pkgutil
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numba
import numpy as np
from llvmlite import binding
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

_PACKAGE = Path(__file__).parent
#: Those with compiled code, beside ``loops``.
_MODULES = "compiling", "float16_bits", "float8_bits", "optimizer_loops_cpu"
_UNUSED_SECONDS = 30 * 24 * 3600
#: Seconds after which a process compiles what another one has not finished.
_LONGEST_COMPILATION = 60

#: Held while Numba is told where code is kept.
_configuring = threading.Lock()

#: All loops that are loaded, in the order of their modules.
LOOPS: list[Loop] = []


class Loop:
    """A function over numbers and contiguous arrays, compiled at its first call.

    Args:
        function: In the Python that Numba knows. It needs no lock of Python's.
        signature: The types of its arguments and its result, as Numba writes them.
        is_sum: Whether additions may be in any order, so that they run in vector
            instructions. The order depends on lengths only.
        is_exact: Whether products are rounded before they are added to, as NumPy's are.
    """

    def __init__(
        self,
        function: Callable,
        signature: str,
        is_sum: bool = False,
        is_exact: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.signature = signature
        self._function = function
        freedoms = {"reassoc": is_sum, "contract": not is_exact}
        self._fast = {name for name, is_free in freedoms.items() if is_free}
        LOOPS.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the compiled function."""
        try:
            return self.compiled(*arguments)
        except TypeError:
            # Numba takes any array for one to be written to, if it can be.
            behaved = [_behaved(a) for a in arguments]
            copies = [(a, b) for a, b in zip(arguments, behaved) if a is not b]
            if not copies:
                raise
            result = self.compiled(*behaved)
            if any(a.tobytes() != b.tobytes() for a, b in copies):
                raise ValueError(
                    f"{self.__name__} writes to an array that is read-only or unaligned"
                ) from None
            return result

    @functools.cached_property
    def compiled(self) -> Callable:
        """The compiled function; it refuses other types."""
        # Without "numpy" a division tests for zero, and nothing runs in vectors.
        options = {"nogil": True, "error_model": "numpy", "fastmath": self._fast}
        dispatcher = njit(**options)(self._function)
        dispatcher.compile(self.signature)
        dispatcher.disable_compile()
        return dispatcher


class _Cache(FunctionCache):
    """Numba's cache, without which the code is compiled, and nothing worse happens."""

    def load_overload(self, *arguments: Any) -> Any:
        """Returns code; ``None`` if there is none, or the file is damaged."""
        try:
            return super().load_overload(*arguments)
        except Exception:
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Keeps code, unless the disk is full."""
        with contextlib.suppress(OSError):
            super().save_overload(*arguments)


def njit(**options: Any) -> Callable[[Callable], Any]:
    """Returns Numba's decorator of that name, which keeps code in our directory."""

    def decorate(function: Callable) -> Any:
        dispatcher = numba.njit(function, **options)
        cache = _cache_of(function)
        if cache is None:
            return dispatcher
        name = f"{function.__module__}.{function.__name__}"
        compile_ = dispatcher.compile

        def compile_once(signature: Any) -> Any:
            # Numba's lock first: who has it may compile what calls this function.
            with global_compiler_lock, _one_at_a_time(name):
                return compile_(signature)

        dispatcher._cache, dispatcher.compile = cache, compile_once
        return dispatcher

    return decorate


def _cache_of(function: Callable) -> _Cache | None:
    """Returns what keeps a function's code, if there is a place for it."""
    directory = cache_directory()
    if directory is None:
        return None
    # What is typed at a prompt has no file.
    with _configuring, contextlib.suppress(RuntimeError):
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = directory
        try:
            return _Cache(function)
        finally:
            numba.config.CACHE_DIR = before
    return None


def loop(signature: str, is_sum: bool = False) -> Callable[[Callable], Loop]:
    """Makes a function a :class:`Loop`.

    Example:
        >>> import numpy as np
        >>> @loop('void(f4[::1], f4)')
        ... def scale(values, factor):
        ...     for i in range(values.size):
        ...         values[i] *= factor
        >>> array = np.ones(3, 'f')
        >>> scale(array, np.float32(2))
        >>> array
        array([2., 2., 2.], dtype=float32)
    """
    return lambda function: Loop(function, signature, is_sum)


def _behaved(argument: Any) -> Any:
    """Returns an argument, or the copy of an array that is read-only or not aligned."""
    is_array = isinstance(argument, np.ndarray)
    return argument.copy() if is_array and not argument.flags.behaved else argument


def compile_all() -> list[Loop]:
    """Compiles every loop of kernels and of update rules, or finds it on disk."""
    package = importlib.import_module("chainer_kernels.loops")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    updates = importlib.import_module("chainer_kernels.optimizer_loops_cpu")
    for formula in importlib.import_module("chainer_kernels.chainer_rules").FORMULAS:
        updates.array_loop(formula)
    for each in LOOPS:
        each.compiled  # noqa: B018
    return list(LOOPS)


@functools.cache
def cache_directory() -> str | None:
    """Returns where compiled loops are kept; ``None``, with a warning, if nowhere.

    That is a directory of ``CHAINER_KERNELS_CACHE``, or of the user's cache.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = os.environ.get("CHAINER_KERNELS_CACHE") or f"{home}/chainer_kernels"
    path = Path(base, _version())
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            _remove_unused(path.parent)
        os.utime(path)
        with tempfile.TemporaryFile(dir=path):
            return str(path)
    except OSError as error:
        warnings.warn(
            f"chainer_kernels compiles its loops at every start: cannot write to {path}"
            f" ({error.strerror}); name a directory in CHAINER_KERNELS_CACHE",
            stacklevel=2,
        )
        return None


def _version() -> str:
    """Returns a name that changes with whatever compiled code depends on."""
    facts = hashlib.sha256()
    # Numba sees that a file has changed, but not one whose functions are inlined.
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
                and status.st_uid == os.getuid()
                and status.st_mtime < time.time() - _UNUSED_SECONDS
            ):
                shutil.rmtree(path)


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Runs a block in one process of this host and user after the other."""
    # Beside the cache may be another machine's file system, which may not lock.
    folder = Path(tempfile.gettempdir(), f"chainer_kernels-{os.getuid()}")
    with contextlib.ExitStack() as stack:
        # Whoever cannot lock compiles what another one does.
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            file = os.open(folder / f"{name}.lock", flags, 0o600)
            stack.callback(os.close, file)
            _wait_for(file)
        yield


def _wait_for(file: int) -> None:
    """Locks a file. The system unlocks those of processes that end."""
    end = time.monotonic() + _LONGEST_COMPILATION
    while time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
