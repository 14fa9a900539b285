"""Names that Python's standard library removed from 3.8 on, for scripts that use them.

Scripts of Chainer's years were written for Python 3.5 to 3.7, and many also for 2.7.
The tables follow the section "Removed" of Python's release notes. Whole modules do not
come back: ``distutils`` is in setuptools, ``imp`` in the package ``zombie-imp``.
"""

from __future__ import annotations

import base64
import collections.abc
import configparser
import fractions
import inspect
import math
import sys
import threading
import time
import unittest
import warnings
import xml.etree.ElementTree
from typing import Any, NamedTuple


class ArgSpec(NamedTuple):
    """The arguments of a function, as ``inspect.getargspec`` returned them."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple | None


def getargspec(function: Any) -> ArgSpec:
    """Returns names and default values of a function's arguments.

    Chainer's functions are shown as they were before they had annotations, and a link
    whose call is ``forward`` with the arguments of that.

    Args:
        function (callable): A Python function or method, or an object with a call.

    Raises:
        ValueError: If the function has arguments by keyword only, or annotations, which
            an ``ArgSpec`` cannot show.
    """
    call = inspect.getattr_static(type(function), "__call__", None)
    if hasattr(function, "forward") and _is_of_chainer(call):
        function = function.forward
    full = inspect.getfullargspec(function)
    if full.kwonlyargs or (full.annotations and not _is_of_chainer(function)):
        raise ValueError(
            f"{function!r} has keyword-only arguments or annotations, which "
            f"inspect.getargspec cannot show: call inspect.getfullargspec"
        )
    return ArgSpec(full.args, full.varargs, full.varkw, full.defaults)


def _is_of_chainer(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] == "chainer"


def gcd(a: int, b: int) -> int:
    """Returns the greatest common divisor, with the sign of ``b`` unless that is 0."""
    return -math.gcd(a, b) if (b or a) < 0 else math.gcd(a, b)


def _readfp(self, fp, filename=None):
    """Reads a configuration from a file, as ``read_file`` does."""
    self.read_file(fp, source=filename)


# The abstract classes that also were in collections, from Python 3.3 to 3.9.
_ABSTRACT = """
    AsyncGenerator AsyncIterable AsyncIterator Awaitable ByteString Callable Collection
    Container Coroutine Generator Hashable ItemsView Iterable Iterator KeysView Mapping
    MappingView MutableMapping MutableSequence MutableSet Reversible Sequence Set Sized
    ValuesView
"""

# Old names, with the present names of unittest.TestCase.
_ASSERTIONS = {
    "assert_": "assertTrue",
    "assertAlmostEquals": "assertAlmostEqual",
    "assertEquals": "assertEqual",
    "assertNotAlmostEquals": "assertNotAlmostEqual",
    "assertNotEquals": "assertNotEqual",
    "assertNotRegexpMatches": "assertNotRegex",
    "assertRaisesRegexp": "assertRaisesRegex",
    "assertRegexpMatches": "assertRegex",
}


def catalogue() -> list[tuple[Any, str, Any]]:
    """Returns the module or class, the name, and its object."""
    abstract = [
        (collections, name, getattr(collections.abc, name))
        for name in _ABSTRACT.split()
        if hasattr(collections.abc, name)
    ]
    assertions = [
        (unittest.TestCase, old, getattr(unittest.TestCase, new))
        for old, new in _ASSERTIONS.items()
    ]
    return [
        *abstract,
        *assertions,
        (base64, "decodestring", base64.decodebytes),
        (base64, "encodestring", base64.encodebytes),
        (configparser, "SafeConfigParser", configparser.ConfigParser),
        (configparser.RawConfigParser, "readfp", _readfp),
        (fractions, "gcd", gcd),
        (inspect, "ArgSpec", ArgSpec),
        (inspect, "getargspec", getargspec),
        (threading.Thread, "isAlive", threading.Thread.is_alive),
        # The time of the processor, as on all systems but Windows.
        (time, "clock", time.process_time),
        (xml.etree, "cElementTree", xml.etree.ElementTree),
    ]


def missing() -> list[tuple[Any, str, Any]]:
    """Returns the entries of the catalogue that this Python lacks."""
    with warnings.catch_warnings():
        # Python warns when a name that it will remove is looked up.
        warnings.simplefilter("ignore")
        return [entry for entry in catalogue() if not hasattr(*entry[:2])]


def enable() -> list[str]:
    """Adds the names that this Python lacks; returns them with their module."""
    added = []
    for place, name, value in missing():
        setattr(place, name, value)
        if inspect.ismodule(value):
            sys.modules[f"{place.__name__}.{name}"] = value
        module = "" if inspect.ismodule(place) else f"{place.__module__}."
        added.append(f"{module}{place.__name__}.{name}")
    return added
