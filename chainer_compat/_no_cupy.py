"""A stand-in for CuPy on a host without it, for scripts that import it at the top.

::

    import cupy                             one warning
    xp = cupy if args.gpu >= 0 else numpy   nothing happens
    isinstance(x, cupy.ndarray)             False
    kernel = cupy.ElementwiseKernel(...)    nothing happens
    kernel(x), cupy.zeros(3)                an error: there is no GPU here, unless the
                                            mode cpu gives NumPy's function

Chainer and others find no GPU, as without the stand-in: they look for ``cupy.cuda`` and
its modules, and importing these is an error.
"""

import ast
import contextlib
import linecache
import sys
import types
from importlib.machinery import ModuleSpec

from chainer_compat._warned import tell

_CURE = (
    "CuPy is not installed, so no GPU can be used: run the script without one (as by"
    " --gpu -1), or install the CuPy that fits the driver, such as"
    " pip install 'cupy-cuda12x[ctk]'"
)
# Kernels and decorators that scripts need while they are imported.
_MADE_EARLY = {
    "ElementwiseKernel",
    "RawKernel",
    "RawModule",
    "ReductionKernel",
    "fuse",
    "memoize",
}
# Questions of scripts before they use a GPU, with the answer.
_ANSWERS = {
    "cupy.cuda.is_available": False,
    "cupy.cuda.runtime.getDeviceCount": 0,
    "cupy.is_available": False,
}
# Modules that exist in name only.
_IN_NAME = {"cupy.core", "cupy.cuda", "cupy.random", "cupy.testing", "cupy.util"}


# Functions that find what NumPy has under a name of CuPy.
_of_numpy = []


def enable_numpy(find) -> None:
    """Gives scripts what NumPy has, where they use a part of CuPy.

    Args:
        find: Function that returns it for a name such as ``cupy.random.seed``, or
            raises an ``AttributeError``.
    """
    if find not in _of_numpy:
        _of_numpy.append(find)


class ndarray:
    """The type of CuPy's arrays, which no array has."""

    def __init__(self, *args, **kwargs):
        _refuse("cupy.ndarray")


class Absent:
    """A part of CuPy, which may be named and not used.

    Args:
        name (str): Its full name.
        may_be_called (bool): Whether a call gives another absent part.
    """

    def __init__(self, name, may_be_called=False) -> None:
        self._name, self._may_be_called = name, may_be_called

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _part(f"{self._name}.{name}", name)

    def __call__(self, *args, **kwargs):
        """Raises an error, unless scripts do this while they are imported."""
        if self._name in _ANSWERS:
            return _ANSWERS[self._name]
        if self._may_be_called:
            return Absent(f"{self._name}()", self._name.endswith(("fuse", "memoize")))
        return _refuse(self._name)

    def __repr__(self) -> str:
        return f"<{self._name}, absent>"


def _part(full_name, name):
    # Scripts also ask for the type as cupy.core.core.ndarray.
    if name == "ndarray":
        return ndarray
    for find in _of_numpy:
        with contextlib.suppress(AttributeError):
            return find(full_name)
    return Absent(full_name, name in _MADE_EARLY)


def _refuse(name):
    raise RuntimeError(f"{name}: {_CURE}")


class NoCupy(types.ModuleType):
    """The stand-in, and the modules within it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if not _is_asked_by_script():
            raise AttributeError(f"{self.__name__}.{name}: {_CURE}")
        return _part(f"{self.__name__}.{name}", name)


def get_array_module(*args):
    """Returns NumPy, because no array is one of CuPy."""
    import numpy

    return numpy


def asnumpy(array, *args, **kwargs):
    """Returns the array, which is one of NumPy."""
    import numpy

    return numpy.asarray(array)


class _Loader:
    """Makes the stand-in."""

    def create_module(self, spec):
        """Returns an empty module."""
        return NoCupy(spec.name)

    def exec_module(self, module) -> None:
        """Adds what works without a GPU; warns that nothing else does."""
        if module.__name__ != "cupy":
            return
        _fill(module)
        # With the mode cpu, a warning comes at the first use of a part of CuPy.
        if not _of_numpy:
            tell(
                "CuPy",
                "this script imports cupy, and chainer_compat gave it a stand-in:"
                f" {_CURE}",
            )


def _fill(module) -> None:
    module.ndarray = ndarray
    module.get_array_module = get_array_module
    module.asnumpy = asnumpy


def stand_in():
    """Returns a stand-in that is imported by nobody."""
    module = NoCupy("cupy")
    _fill(module)
    return module


# Packages that look whether there is a GPU, and find CuPy where a script imported it.
_ASKING = {
    "chainer",
    "chainermn",
    "chainer_kernels",
    "divisible",
    "mpi4py",
    "numba",
    "pipeline",
    "scipy",
    "sklearn",
    "torch",
}


def _asking_frame():
    """Returns the frame that imports or uses a part of CuPy."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    return frame


def _is_between(frame) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in (
        "_frozen_importlib",
        "chainer_compat",
        "importlib",
    )


def _is_asked_by_script() -> bool:
    name = _asking_frame().f_globals.get("__name__", "")
    return name.partition(".")[0] not in _ASKING


def _is_bare_import() -> bool:
    """Returns whether a line imports CuPy, outside of any ``try``.

    A script that expects an ``ImportError`` knows what to do without CuPy. So does a
    package that looks for it by ``importlib``.
    """
    frame = _asking_frame()
    line = frame.f_lineno
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return False
    found = False
    for node in ast.walk(tree):
        if not _is_at(node, line):
            continue
        body = node.body if isinstance(node, ast.Try) and node.handlers else ()
        if any(_is_at(each, line) for each in body):
            return False
        if isinstance(node, ast.Import):
            found |= any(each.name.startswith("cupy") for each in node.names)
        if isinstance(node, ast.ImportFrom):
            found |= (node.module or "").startswith("cupy")
    return found


def _is_at(node, line) -> bool:
    """Returns whether a node of a syntax tree is at a line."""
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= node.end_lineno


def spec():
    """Returns the spec of the stand-in; None where the import may fail."""
    if not _is_bare_import():
        return None
    return ModuleSpec("cupy", _Loader(), is_package=True)


def spec_within(name):
    """Returns the spec of a module of the stand-in.

    Raises:
        ImportError: If the module is asked for to find out whether there is a GPU.
    """
    if name in _IN_NAME and _is_asked_by_script():
        return ModuleSpec(name, _Loader(), is_package=True)
    raise ImportError(f"{name}: {_CURE}", name=name)
