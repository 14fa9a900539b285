"""Shows what ``python -m benchmarks.old_repositories`` has written.

    .. old-programs:: ran           programs that ran, by kind
    .. old-programs:: stopped       what stopped the others
    .. old-programs:: counts        numbers of programs by what they needed

The argument is a part of the result.
"""

from __future__ import annotations

from catalogue_tables import table
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from benchmarks.common.results import RESULTS
from benchmarks.old_repositories import comparing
from benchmarks.old_repositories.programs import PROGRAMS
from benchmarks.old_repositories.rows import Row, read

RESULT = RESULTS / "old_repositories.txt"


class OldPrograms(SphinxDirective):
    """One of three parts of the result."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parses the part in place of the directive."""
        self.env.note_dependency(str(RESULT))
        rows = [*read(RESULT.read_text(encoding="utf-8"), PROGRAMS).values()]
        lines = PARTS[self.arguments[0]](rows)
        node = nodes.Element(document=self.state.document)
        self.state.nested_parse(
            StringList(lines, source=str(RESULT)), self.content_offset, node
        )
        return node.children


def ran(rows: list[Row]) -> list[str]:
    """Returns a table of the programs that ran, by kind."""
    found = sorted((row for row in rows if row.has_run), key=lambda r: r.program.kind)
    cells = [
        (
            row.program.kind,
            _link(row),
            row.program.chainer,
            row.words,
            row.agreement,
        )
        for row in found
    ]
    head = "kind", "repository", "Chainer", "how it ran", "losses with kernels"
    return table("16 30 8 28 18", [head, *cells])


def stopped(rows: list[Row]) -> list[str]:
    """Returns a table of the programs that did not run, by reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if not row.has_run:
            reasons.setdefault(row.words, []).append(_link(row))
    cells = [
        (f"``{why}``" if why.startswith("stopped") else why, ", ".join(links))
        for why, links in sorted(reasons.items(), key=lambda each: -len(each[1]))
    ]
    return table("35 65", [("what stopped it", "repositories"), *cells])


def counts(rows: list[Row]) -> list[str]:
    """Returns a list of the numbers of programs."""
    lines = comparing.counts([(row.program, row.words) for row in rows])
    return [f"* {line}" for line in lines]


def _link(row: Row) -> str:
    name = row.program.repository
    return f"`{name} <https://github.com/{name}/tree/{row.program.commit}>`__"


PARTS = {each.__name__: each for each in (ran, stopped, counts)}


def setup(app) -> dict[str, bool]:
    """Registers the directive with Sphinx."""
    app.add_directive("old-programs", OldPrograms)
    return {"parallel_read_safe": True}
