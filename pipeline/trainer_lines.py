"""Lines for a terminal on which a trainer's extensions print as well."""

from __future__ import annotations

import sys
from typing import Any

from chainer.training import extensions

from divisible.side_files import SideFiles
from divisible.terminal_text import printable

# Erases everything behind the cursor, which a progress bar leaves at its first line.
_ERASE = "\033[J"
_OUTPUT = SideFiles("lines for the user", "Free space there, or redirect the output.")


def say(trainer: Any, text: str) -> None:
    """Prints a line that a progress bar of Chainer neither hides nor cuts.

    If the standard output fails, as on a full disk, the training does not end.

    Args:
        trainer (chainer.training.Trainer): Trainer, whose extensions may include a
            progress bar.
        text (str): Line to print.
    """
    has_bar = any(
        isinstance(entry.extension, extensions.ProgressBar)
        and entry.extension._pbar._out is sys.stdout
        for entry in trainer._extensions.values()
    )
    with _OUTPUT.writing("the standard output"):
        text = printable(text, keeps_lines=True)
        print(f"{_ERASE if has_bar else ''}{text}", flush=True)
