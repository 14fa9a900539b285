"""Findings of rules: places of a script that change, or stand in the way."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.porting.edits import Edit


class Finding(NamedTuple):
    """One place of a script.

    Attributes:
        line: Number of the line in the script, from 1.
        text: Description of what changes there, or of what stands in the way.
        edits: Changes of the source; none where the script stays as it is.
        page: Page of the documentation that helps, such as ``'howto/trainer'``.
        is_obstacle: Whether the script cannot be ported because of it.
    """

    line: int
    text: str
    edits: tuple[Edit, ...] = ()
    page: str = ""
    is_obstacle: bool = False


def obstacle(line: int, text: str, page: str) -> Finding:
    """Returns a finding that stands in the way."""
    return Finding(line, text, page=page, is_obstacle=True)
