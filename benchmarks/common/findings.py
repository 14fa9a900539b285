"""A table that compares findings of a paper with measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Finding(NamedTuple):
    """A finding of a paper, and the same here.

    Attributes:
        finding: The finding, with its place in the paper.
        paper: The paper's number; empty if it prints none.
        here: The number here.
        is_reproduced: Whether the finding holds here; ``None`` in part.
        why: The reason.
        measured_with: The run that it was measured in, where a table has several.
    """

    finding: str
    paper: str
    here: str
    is_reproduced: bool | None
    why: str
    measured_with: str = ""

    @property
    def verdict(self) -> str:
        """A word for the last but one column."""
        return {True: "yes", False: "no", None: "in part"}[self.is_reproduced]


def as_markdown(findings: Sequence[Finding]) -> list[str]:
    r"""Returns the lines of a table.

    Example:
        >>> lines = as_markdown([Finding("it is fast", "2 s", "3 s", None, "as is")])
        >>> print("\n".join(lines))
        | finding of the paper | its number | here | reproduced | why |
        |---|---|---|---|---|
        | it is fast | 2 s | 3 s | in part | as is |
    """
    columns = ("finding of the paper", "its number", "measured with", "here")
    rows = [(*columns, "reproduced", "why")]
    for each in findings:
        place = each.finding, each.paper, each.measured_with
        rows.append((*place, each.here, each.verdict, each.why))
    if not any(each.measured_with for each in findings):
        rows = [(*row[:2], *row[3:]) for row in rows]
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return [first, "|---" * len(rows[0]) + "|", *others]
