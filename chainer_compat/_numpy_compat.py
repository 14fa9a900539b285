"""The names of ``numpy.compat``, from the move from Python 2 to 3."""

from __future__ import annotations

import io
import os
import pickle  # noqa: F401
import sys
from contextlib import nullcontext as contextlib_nullcontext  # noqa: F401
from os import PathLike as os_PathLike  # noqa: F401
from os import fspath as os_fspath  # noqa: F401
from pathlib import Path

basestring = unicode = str
bytes = bytes
long = int
integer_types = (int,)
strchar = "U"


def asbytes(s) -> bytes:
    """Returns a string as bytes, one for each character."""
    return s if isinstance(s, bytes) else str(s).encode("latin1")


def asstr(s) -> str:
    """Returns bytes as a string, a character for each."""
    return s.decode("latin1") if isinstance(s, bytes) else str(s)


asunicode = asstr


def asbytes_nested(x):
    """Returns nested lists with every string as bytes."""
    return _nested(asbytes, x)


def asunicode_nested(x):
    """Returns nested lists with all bytes as strings."""
    return _nested(asunicode, x)


def _nested(convert, x):
    if hasattr(x, "__iter__") and not isinstance(x, (bytes, str)):
        return [_nested(convert, element) for element in x]
    return convert(x)


def sixu(s):
    """Returns its argument."""
    return s


def getexception():
    """Returns the exception that is being handled."""
    return sys.exc_info()[1]


def isfileobj(f) -> bool:
    """Returns whether an object is a file of the operating system."""
    return isinstance(f, (io.FileIO, io.BufferedReader, io.BufferedWriter))


def open_latin1(filename: str | os.PathLike, mode: str = "r"):
    """Opens a text file, a character for each byte."""
    return open(filename, mode, encoding="iso-8859-1")


def is_pathlib_path(obj) -> bool:
    """Returns whether an object is a ``pathlib.Path``."""
    return isinstance(obj, Path)
