"""Terminals: programs that print to one, and what it shows after all of it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time

from tests.support.processes import LOAD, ROOT

_PART = re.compile(r"\x1b\[(\d*)([AJ])|\n|\r|[^\x1b\n\r]+")


def screen(text: str) -> list[str]:
    """Returns the lines of a terminal that knows what Chainer's progress bar needs.

    Args:
        text: All that was printed: characters, ends of lines, ``ESC [ n A``, which goes
            up, and ``ESC [ J``, which erases what follows the cursor.
    """
    lines, row, column = [""], 0, 0
    for part in _PART.finditer(text):
        number, kind = part.groups()
        if kind == "J":
            lines = [*lines[:row], lines[row][:column]]
        elif kind == "A":
            row -= int(number or 1)
        elif part[0] == "\r":
            column = 0
        elif part[0] == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        else:
            line = lines[row].ljust(column)
            column, begin = column + len(part[0]), line[:column]
            lines[row] = begin + part[0] + line[column:]
    return lines


def printed_to_a_terminal(command: list[str], timeout: float = 60) -> str:
    """Returns what a program prints whose standard output is a terminal.

    Fails if it has not ended well after ``timeout`` seconds of an idle machine.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.STDOUT,
    )
    os.close(theirs)
    content, end = b"", time.monotonic() + timeout * LOAD
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    content += os.read(ours, 65536)
                except OSError:
                    # On Linux, no program has the terminal open any more.
                    break
        assert process.wait(timeout=10) == 0, content
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return content.decode().replace("\r\n", "\n")
