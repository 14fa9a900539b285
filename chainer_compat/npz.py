"""Reads ``.npz`` files without running code in them.

Chainer writes ``None`` as an array of objects, which NumPy pickles. Reading a pickle
calls any functions that it names, so a file of weights can run any code of its author.
Here such arrays are read twice:

    first    every name is replaced by an inert class, and recorded
    then     in the way of NumPy, if there are names and all were allowed

``chainer.serializers.load_npz`` and ``NpzDeserializer`` read in this way by a shim.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import pickle
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile

_allowed: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "allowed", default=frozenset()
)
_RECONSTRUCT = {
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
}
# Names in every array of objects, also in an array of None alone. The last is in files
# that NumPy wrote by the pickle protocol of Python 2.
_OF_ARRAYS = _RECONSTRUCT | {"numpy.ndarray", "numpy.dtype", "_codecs.encode"}
# Bytes that are read at a time where an array is only checked.
_PART = 2**20
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@contextlib.contextmanager
def allow_pickle(*names: str) -> Iterator[None]:
    """Allows files whose arrays hold other objects than ``None`` within a block.

    Only for files that you trust: an object of a type may run any code when it is read.

    Args:
        names: Types and functions that the files may use; the error that refuses a file
            lists them.

    Example:
        >>> import io, chainer, numpy as np
        >>> file = io.BytesIO()
        >>> np.savez(file, words=np.array({"a": 1}))
        >>> with allow_pickle("builtins.dict"), NpzArrays(file) as arrays:
        ...     arrays["words"].item()
        {'a': 1}
    """
    token = _allowed.set(_allowed.get().union(names))
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed_names() -> frozenset[str]:
    """Returns the names that :func:`allow_pickle` has allowed here."""
    return _allowed.get()


class NpzArrays(NpzFile):
    """The arrays of a file by key; each is read when it is accessed.

    Args:
        file: Path, or a file that was opened for reading.

    Raises:
        OSError: If the file does not exist.
        ValueError: If the file is not an ``.npz`` file. Access to an array that does
            not hold numbers, texts or ``None`` raises this as well.
    """

    def __init__(self, file: Any) -> None:
        try:
            super().__init__(file)
        except OSError:
            raise
        except Exception as error:
            # A path has a name as well, without its folder.
            is_path = isinstance(file, os.PathLike)
            name = file if is_path else getattr(file, "name", file)
            raise ValueError(f"{name} is no .npz file: {error}") from error

    def __getitem__(self, key: str) -> np.ndarray:
        return read(self, key)


def read(arrays: Any, key: str) -> np.ndarray:
    """Returns one array; an array of objects only if they are ``None`` or were allowed.

    Args:
        arrays: Result of ``numpy.load`` for an ``.npz`` file, with any
            ``allow_pickle``. From another mapping the item is returned.
        key: Key of the array.

    Raises:
        KeyError: If there is no such array.
        ValueError: If the array is damaged, or has objects that were not allowed.
    """
    if not isinstance(arrays, NpzFile):
        return arrays[key]
    name = key if key in arrays.zip.NameToInfo else f"{key}.npy"
    if name not in arrays.zip.NameToInfo:
        raise KeyError(f"{key} is not a file in the archive")
    where = f"{arrays.zip.filename or 'the file'}: {key}"
    try:
        with arrays.zip.open(name) as file:
            version = npy.read_magic(file)
            if version in _HEADERS:
                shape, _, dtype = _HEADERS[version](file)
                if dtype.hasobject:
                    return _read_objects(file, shape)
            # With other versions NumPy itself refuses objects.
            file.seek(0)
            return npy.read_array(file, allow_pickle=False)
    except _Unknown as error:
        names = ", ".join(map(repr, error.names))
        raise ValueError(
            f"{where} holds objects that need {', '.join(error.names)}. They are not"
            f" read: whoever made the file could run any code here. If you trust it,"
            f" from chainer_compat.npz import allow_pickle, and load it in a block:"
            f" with allow_pickle({names}):"
        ) from None
    except Exception as error:
        # A damaged file makes zipfile, zlib, pickle or NumPy raise any kind of error.
        raise _damaged(arrays, key, error) from error


def header(arrays: Any, key: str) -> tuple[tuple, np.dtype] | None:
    """Returns the shape and the dtype of an array, without reading the rest of it.

    Args:
        arrays: Result of ``numpy.load``; see :func:`read`.
        key: Key of the array, which must exist.

    Returns:
        tuple or None: ``None`` if only reading the array can tell its shape, or its
        fault.
    """
    if not isinstance(arrays, NpzFile):
        return None
    name = key if key in arrays.zip.NameToInfo else f"{key}.npy"
    # A damaged file makes zipfile, zlib or NumPy raise, and reading it reports the
    # error.
    with contextlib.suppress(Exception), arrays.zip.open(name) as file:
        version = npy.read_magic(file)
        if version in _HEADERS:
            shape, _, dtype = _HEADERS[version](file)
            n_bytes = file.tell() + math.prod(shape) * dtype.itemsize
            if n_bytes == arrays.zip.NameToInfo[name].file_size:
                return shape, dtype
    return None


def read_into(
    arrays: Any, key: str, out: np.ndarray, parts: Iterable[tuple[int, int]]
) -> None:
    """Reads an array into another one, part by part.

    Args:
        arrays: Result of ``numpy.load``; see :func:`read`.
        key: Key of the array.
        out: C contiguous array of the same shape, to be filled.
        parts: First row of each part and the row after its last, in order and without
            gaps.

    Raises:
        KeyError: If there is no such array.
        ValueError: If the array is damaged, of another shape, or of objects.
    """
    found = header(arrays, key)
    if found is None or found[1].hasobject:
        # Reading the whole array either works, or raises its error.
        whole = read(arrays, key)
        for start, stop in parts:
            out[start:stop] = whole[start:stop]
        return
    shape, dtype = found
    name = key if key in arrays.zip.NameToInfo else f"{key}.npy"
    if shape != out.shape:
        raise ValueError(f"{key} is of shape {shape}, not {out.shape}")
    try:
        with arrays.zip.open(name) as file:
            _, is_fortran, _ = _HEADERS[npy.read_magic(file)](file)
            if is_fortran and len(shape) > 1:
                out[...] = read(arrays, key)
                return
            for start, stop in parts:
                part = np.empty((stop - start, *shape[1:]), dtype)
                _fill(file, part)
                out[start:stop] = part
            # The end of the entry is where its checksum is compared.
            file.read(1)
    except Exception as error:
        raise _damaged(arrays, key, error) from error


def check(arrays: Any, key: str) -> None:
    """Checks whether an array is damaged, without having all of it in memory.

    Args:
        arrays: Result of ``numpy.load``; see :func:`read`.
        key: Key of the array.

    Raises:
        KeyError: If there is no such array.
        ValueError: If the array is damaged, or of objects that were not allowed.
    """
    if header(arrays, key) is None:
        read(arrays, key)
        return
    name = key if key in arrays.zip.NameToInfo else f"{key}.npy"
    try:
        with arrays.zip.open(name) as file:
            while file.read(_PART):
                pass
    except Exception as error:
        raise _damaged(arrays, key, error) from error


def _damaged(arrays: NpzFile, key: str, error: Exception) -> ValueError:
    where = f"{arrays.zip.filename or 'the file'}: {key}"
    return ValueError(f"{where} cannot be read: {type(error).__name__}: {error}")


def _fill(file: IO[bytes], array: np.ndarray) -> None:
    rest = memoryview(array.reshape(-1).view(np.uint8))
    while rest:
        n_bytes = file.readinto(rest)
        if not n_bytes:
            raise EOFError(f"{len(rest)} bytes are missing")
        rest = rest[n_bytes:]


class _Unknown(Exception):
    """An array has objects that were not allowed."""

    def __init__(self, names: set) -> None:
        super().__init__()
        self.names = sorted(names)


def _read_objects(file: IO[bytes], shape: tuple) -> np.ndarray:
    start = file.tell()
    inspecting = _Inspecting(file)
    try:
        array = inspecting.load()
        n_elements, types = _elements(array)
    except Exception:
        # The error may follow from the inert classes; then the names are reported
        # instead.
        if inspecting.names <= _OF_ARRAYS:
            raise
        n_elements, types = None, set()
    needed = (inspecting.names - _OF_ARRAYS) | types
    if needed - _allowed.get():
        raise _Unknown(needed)
    if needed:
        file.seek(start)
        return _Allowing(file).load()
    if n_elements != math.prod(shape):
        raise ValueError(f"{n_elements} objects, but the shape is {shape}")
    return np.full(shape, None)


class _Inert:
    """Replaces any object that a pickle makes, and does nothing."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Inspecting(pickle.Unpickler):
    """Records the names in a pickle, and calls nothing."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.names: set = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add(f"{module}.{name}")
        return type(name, (_Inert,), {"__module__": module})


class _Allowing(pickle.Unpickler):
    """Finds allowed names only."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _OF_ARRAYS | _allowed.get():
            raise _Unknown({f"{module}.{name}"})
        return super().find_class(module, name)


def _elements(array: Any) -> tuple:
    """Returns how many objects an inertly read array has, and their types."""
    if _name(type(array)) not in _RECONSTRUCT:
        raise ValueError("it is no array")
    # The state that numpy.ndarray.__reduce__ makes.
    _, _, _, _, elements = array.state
    if not isinstance(elements, list):
        raise ValueError("its elements are no list")
    types = {type(each) for each in elements} - {type(None)}
    return len(elements), set(map(_name, types))


def _name(thing: type) -> str:
    return f"{thing.__module__}.{thing.__name__}"
