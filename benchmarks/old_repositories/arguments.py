"""Options that the commands over a folder of source trees have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common.results import Result

_Entry = TypeVar("_Entry")


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


def found_in(
    entries: Sequence[_Entry], parser: argparse.ArgumentParser, trees: Path
) -> list[_Entry]:
    """Returns the entries of a table whose trees are there; ends if none is.

    Args:
        entries: Entries that are wanted, such as
            :class:`~benchmarks.old_repositories.program.Program`.
        parser: Parser of the command.
        trees: Folder of all trees.
    """
    found = [each for each in entries if (trees / each.name).is_dir()]
    if entries and not found:
        parser.error(f"{trees} has none of the source trees: {_fetch(entries[0])}")
    return found


def write_left_out(
    result: Result, entries: Sequence[Any], found: Sequence[Any]
) -> None:
    """Writes how many entries have no tree in the folder, and how to fetch one."""
    left_out = [each for each in entries if each not in found]
    if left_out:
        what = f"{len(left_out)} of {len(entries)} are left out, as they are not in DIR"
        result.write(f"{what}: {_fetch(left_out[0])}")


def _fetch(entry: Any) -> str:
    """Returns how to fetch a tree."""
    return (
        f"fetch https://github.com/{entry.repository} at {entry.commit} into"
        f" DIR/{entry.name}"
    )


def _folder(text: str) -> Path:
    return Path(text).resolve()
