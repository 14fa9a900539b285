"""Lines for a terminal on which a trainer's extensions print as well."""

from __future__ import annotations

import sys
from typing import Any

from chainer.training import extensions

from divisible.side_files import SideFiles
from divisible.terminal_text import printable

# Erases everything from the cursor on: a progress bar leaves it at its first line.
_ERASE = "\033[J"
_OUTPUT = SideFiles("lines for the user", "Free space there, or redirect the output.")


def say(trainer: Any, text: str) -> None:
    """Prints a line, which a progress bar of Chainer's neither hides nor cuts.

    A failure of the standard output, as on a full disk, does not end the training.

    Args:
        trainer (chainer.training.Trainer): The trainer, by whose extensions it is known
            whether there is a bar.
        text (str): The line.
    """
    has_bar = any(
        isinstance(entry.extension, extensions.ProgressBar)
        and entry.extension._pbar._out is sys.stdout
        for entry in trainer._extensions.values()
    )
    with _OUTPUT.writing("the standard output"):
        text = printable(text, keeps_lines=True)
        print(f"{_ERASE if has_bar else ''}{text}", flush=True)
