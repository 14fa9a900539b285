"""Options that the commands over a folder of source trees have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def parser_of(doc: str, what: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all commands have.

    Args:
        doc: Docstring of the command, whose first line describes it.
        what: The things that the command runs, in the plural.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    add = parser.add_argument
    add("trees", type=_folder, metavar="DIR", help="source trees, in OWNER+NAME")
    add("--only", nargs="*", default=[], help=f"{what} with these in their names")
    add("--environments", type=_folder, help="where environments stay for the next run")
    add("--timeout", type=float, default=900, help="seconds of an installation")
    add("--show", action="store_true", help=f"print all that failing {what} print")
    add("--output", type=Path)
    return parser


def is_chosen(only: Sequence[str], name: str) -> bool:
    """Returns whether a name has one of the words of ``--only``, if there are some."""
    return not only or any(each in name for each in only)


def _folder(text: str) -> Path:
    return Path(text).resolve()
