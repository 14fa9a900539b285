"""A line at the bottom of a terminal, above which other lines appear.

The cursor stays at the beginning of the line, as with Chainer's progress bar. So
whatever prints next erases the line first::

    epoch  main/loss              printed by PrintReport, which erases by itself
    1      0.693
    warning: ...                  printed by print() or warnings, by way of this module
    epoch 1.2/5  loss 0.512       the line, drawn again after each of them
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size

from divisible.terminal_text import printable

# Erases everything behind the cursor.
_ERASE = "\033[J"
# Programs that print what ranks print.
_LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun", "srun")
_MOST_ANCESTORS = 8


class TerminalLine:
    """The last line of a terminal.

    Args:
        out: The stream to the terminal.
        device (str or None): Path of the terminal, of which the width is read; ``None``
            if it is ``out``'s.
    """

    def __init__(self, out: TextIO, device: str | None = None) -> None:
        self._out, self._device = out, device
        self._is_shown = False
        self._is_within_a_line = False
        self._streams: list[_Above] = []

    def open(self) -> None:
        """Puts streams that erase the line in place of the standard ones."""
        for name in ("stdout", "stderr"):
            stream = _Above(getattr(sys, name), self)
            self._streams.append(stream)
            setattr(sys, name, stream)

    def above(self, stream: TextIO) -> TextIO:
        """Returns the stream in place of a standard one; others as they are."""
        return next((each for each in self._streams if each.stream is stream), stream)

    def show(self, text: str) -> None:
        """Draws the line, or replaces it, shortened to the width of the terminal."""
        if self._is_within_a_line:
            # The line would cut what was printed without an end of its line.
            return
        width = self._width()
        text = _encodable(printable(text), self._out)
        if cell_len(text) > width:
            text = set_cell_size(text, width).rstrip()
        self._out.write(f"{_ERASE}{text}\r")
        self._out.flush()
        self._is_shown = True

    def make_way(self, text: str) -> None:
        """Erases the line, before ``text`` is printed by another one."""
        self._is_within_a_line = not text.endswith("\n")
        if self._is_shown:
            self._is_shown = False
            self._out.write(_ERASE)
            self._out.flush()

    def close(self) -> None:
        """Erases the line, and lets others print as before."""
        # The terminal may be gone.
        with contextlib.suppress(OSError, ValueError):
            self.make_way("\n")
        for name, stream in zip(("stdout", "stderr"), self._streams):
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)
        self._streams = []

    def _width(self) -> int:
        columns = 0
        if self._device is not None:
            with contextlib.suppress(OSError):
                descriptor = os.open(self._device, os.O_RDONLY | os.O_NOCTTY)
                try:
                    columns = os.get_terminal_size(descriptor).columns
                finally:
                    os.close(descriptor)
        # Some terminals have no size. A line of full width would continue below.
        return (columns or shutil.get_terminal_size().columns) - 1


class _Above:
    """A stream that erases the line before it prints."""

    def __init__(self, stream: TextIO, line: TerminalLine) -> None:
        self.stream, self._line = stream, line

    def write(self, text: str) -> int:
        if text:
            self._line.make_way(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        # The stream's own would not erase the line.
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def terminal_of(out: TextIO) -> str | None:
    """Returns the path of the terminal that a stream prints to, or ``None``.

    A rank prints into a pipe, a socket or a terminal of the launcher's own, from which
    the launcher prints. So the nearest launcher above this process decides, if there is
    one. A file and a null device are no terminals, whoever has started the process.
    """
    try:
        mode = os.fstat(out.fileno()).st_mode
        own = os.ttyname(out.fileno()) if out.isatty() else None
    except (OSError, ValueError, AttributeError):
        return None
    if own is None and not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None
    process = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        try:
            about = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
            name = about[about.index("(") + 1 : about.rindex(")")]
            if name.startswith(_LAUNCHERS):
                path = os.readlink(f"/proc/{process}/fd/1")
                return path if path.startswith(("/dev/pts/", "/dev/tty")) else None
            process = int(about[about.rindex(")") + 1 :].split()[1])
        except (OSError, ValueError):
            break
    return own


def _encodable(text: str, out: TextIO) -> str:
    """Returns text that a stream can encode, with escapes for other characters."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
