"""Counts which of our modules a call passes, and how many of our functions it calls."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any, Callable, NamedTuple

from tests.support.processes import PACKAGES, ROOT

#: The modules in which a rank waits for another one. How often a wait polls depends on
#: the other rank, so neither their functions nor what they call is counted.
WAITS = ("divisible/communication/waiting.py",)


class Walk(NamedTuple):
    """The functions of our packages that a call has passed.

    Attributes:
        modules: Paths of the modules, in the order in which the call reached them.
        calls: Number of calls of our functions, generators' steps included.
        changes: Number of calls from one of our modules to another one.
    """

    modules: list[str]
    calls: int
    changes: int

    def __str__(self) -> str:
        """Returns the three numbers and the modules, for a message of a test."""
        lines = [
            f"{len(self.modules)} modules, {self.calls} calls, {self.changes} changes"
        ]
        return "\n  ".join([*lines, *self.modules])


def walk(function: Callable[..., Any], *args: Any) -> Walk:
    """Calls a function, and counts what it passes in this thread.

    Args:
        function: Any callable.
        args: Its arguments.

    Returns:
        The modules, calls and changes, without those below a wait.
    """
    counter = _Counter()
    before = sys.getprofile()
    sys.setprofile(counter)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
    return Walk(list(counter.modules), counter.calls, counter.changes)


class _Counter:
    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.calls = self.changes = 0
        self._waits_since: FrameType | None = None
        self._last = ""
        self._names: dict[CodeType, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self._waits_since is not None:
            if event == "return" and frame is self._waits_since:
                self._waits_since = None
            return
        if event != "call":
            return
        code = frame.f_code
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = _name_of(code)
        if not name:
            return
        if name in WAITS:
            self._waits_since = frame
            return
        self.modules.setdefault(name)
        self.calls += 1
        self.changes += name != self._last
        self._last = name


def _name_of(code: CodeType) -> str:
    """Returns the path of a module below the root, or nothing for others' modules."""
    name = os.path.relpath(code.co_filename, ROOT)
    return name if name.split(os.sep)[0] in PACKAGES else ""
