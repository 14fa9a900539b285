"""Rows of the result: a program, what it needed, and how its losses agree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.old_repositories.program import Program

#: How the words of a program begin that did not run.
STOPPED = "stopped"


class Row(NamedTuple):
    """A row.

    Attributes:
        program: The program.
        words: Help that it needed, the error that stopped it, or why no CPU can run it.
        agreement: How losses agree with kernels and without, in words.
        times: Seconds of a step, in words, if it was timed.
    """

    program: Program
    words: str
    agreement: str = ""
    times: str = ""

    @property
    def has_run(self) -> bool:
        """Whether the program ran."""
        return not self.program.beyond and not self.words.startswith(STOPPED)

    def __str__(self) -> str:
        """Returns the line of the result."""
        parts = [self.words, self.agreement, self.times]
        return f"{head(self.program)} {'; '.join(filter(None, parts))}"


def head(program: Program) -> str:
    """Returns how the line of a program begins."""
    return f"{program.repository:44} {program.kind:22} {program.chainer:5}"


def read(text: str, programs: Iterable[Program]) -> dict[str, Row]:
    """Reads the rows of a result.

    A program that became one of those that no CPU can run, or that is not one any
    more, has no row.

    Args:
        text: The result.
        programs: Programs to look for.

    Returns:
        Rows by the names of repositories.
    """
    found = {}
    lines = text.splitlines()
    for program in programs:
        begin = head(program) + " "
        for line in lines:
            if not line.startswith(begin):
                continue
            row = _parsed(program, line.removeprefix(begin))
            if bool(program.beyond) == (row.words == program.beyond):
                found[program.repository] = row
    return found


def _parsed(program: Program, rest: str) -> Row:
    if rest.startswith(STOPPED):
        return Row(program, rest)
    return Row(program, *rest.split("; ", 2))
