"""Places in the code of users: the line of a forward that made a call.

::

    Net.forward, line 14        h = self.block(x)          <- the place of the call
      chainer/link.py           out = forward(*args)
        divisible/chains/...    hook
"""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

#: Packages whose frames lie between a hook and the code of a user.
_PACKAGES = {
    "chainer",
    "chainer_compat",
    "chainer_kernels",
    "chainermn",
    "contextlib",
    "cupy",
    "divisible",
    "functools",
    "numpy",
    "six",
}
#: Packages of Chainer with links whose forward may be taken apart.
_LINKS = ("chainer.links.", "chainer.sequential")

_LONGEST = 90


class Place(NamedTuple):
    """A line in the code of a user.

    Attributes:
        path: File of the code.
        line: Number of the line.
        name: Name of the function, with its class.
    """

    path: str
    line: int
    name: str

    def __str__(self) -> str:
        text = linecache.getline(self.path, self.line).strip()
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]} ..."
        where = f"line {self.line} of {os.path.basename(self.path)}, in {self.name}"
        return f"{where}: {text}" if text else where


def here(root: CodeType) -> Place | None:
    """Returns the line of a user that is being executed.

    Args:
        root (code): Code of the function that called the forward. Frames outside of it
            are not searched.

    Returns:
        Place or None: The innermost line outside of the packages of Chainer and of this
        project; without one, the innermost line of a link of Chainer.
    """
    frame = sys._getframe(1)
    frames = []
    while frame is not None and frame.f_code is not root:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _first(frames)


def raised_at(traceback: TracebackType | None) -> Place | None:
    """Returns the innermost line of a user in a traceback, as :func:`here` does."""
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _first(frames[::-1])


def is_users(frame: FrameType) -> bool:
    """Returns whether a frame belongs to the code of a user."""
    return _module(frame).partition(".")[0] not in _PACKAGES


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _first(frames: list[tuple[FrameType, int]]) -> Place | None:
    """Returns the first line of a user, or else of a link of Chainer."""
    fallback = None
    for frame, line in frames:
        if is_users(frame):
            return _place(frame, line)
        if fallback is None and _module(frame).startswith(_LINKS):
            fallback = _place(frame, line)
    return fallback


def _place(frame: FrameType, line: int) -> Place:
    code = frame.f_code
    name = getattr(code, "co_qualname", None)
    if name is None:
        # Before Python 3.11 code has no name with its class.
        owner = frame.f_locals.get("self")
        name = code.co_name
        if owner is not None:
            name = f"{type(owner).__qualname__}.{name}"
    return Place(code.co_filename, line, name.rpartition("<locals>.")[2])
