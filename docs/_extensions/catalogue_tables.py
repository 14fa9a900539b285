"""Directives that show in the documentation what a catalogue knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


def table(widths: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, whose first row is its header."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for first, *others in rows:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return lines


def directive(
    make: Callable[[], list[str]], catalogue: ModuleType
) -> type[SphinxDirective]:
    """Returns a directive that stands for the lines that a function makes.

    Args:
        make: Returns them.
        catalogue: Module whose entries the table lists.
    """

    class FromCatalogue(SphinxDirective):
        """Reads what a function makes of the catalogue."""

        def run(self) -> list[nodes.Node]:
            """Parses the lines in place of the directive."""
            self.env.note_dependency(catalogue.__file__)
            node = nodes.Element(document=self.state.document)
            lines = StringList(make(), source=catalogue.__file__)
            self.state.nested_parse(lines, self.content_offset, node)
            return node.children

    return FromCatalogue
