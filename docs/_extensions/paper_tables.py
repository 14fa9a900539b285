"""Shows in the documentation what ``python -m benchmarks.paper_tables`` has written.

    .. paper-tables:: The paper's figures       its first section, with the table
    .. paper-tables:: Fig. 8                    the section of a figure
       :page: paper_exchange                    of ``benchmarks.paper_exchange``

The argument is how the title of a section begins.
"""

from __future__ import annotations

import pathlib
import re

from catalogue_tables import table
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

DOCS = pathlib.Path(__file__).parents[1]


class PaperTables(SphinxDirective):
    """A section of that page: its paragraphs, its table and its figures."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"page": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Parses the section in place of the directive."""
        folder = self.options.get("page", "paper_tables")
        page = DOCS / folder / "README.md"
        self.env.note_dependency(str(page))
        wanted = self.arguments[0]
        sections = sections_of(page.read_text(encoding="utf-8"))
        found = [s for title, s in sections.items() if title.startswith(wanted)]
        if len(found) != 1:
            raise self.error(f"{wanted!r} begins {len(found)} of {[*sections]}")
        node = nodes.Element(document=self.state.document)
        lines = StringList(as_rst(found[0], folder), source=str(page))
        self.state.nested_parse(lines, self.content_offset, node)
        return node.children


def sections_of(markdown: str) -> dict[str, list[str]]:
    """Returns the blocks of each section by its title."""
    _, *parts = re.split(r"^#+ (.*)$", markdown, flags=re.MULTILINE)
    pairs = zip(parts[::2], parts[1::2])
    return {title: text.strip().split("\n\n") for title, text in pairs}


def as_rst(blocks: list[str], folder: str) -> list[str]:
    """Returns blocks of Markdown, with pictures in a folder, as reStructuredText."""
    lines = []
    for block in blocks:
        if block.startswith("Written by"):
            # For whoever finds that file.
            continue
        if block.startswith("|"):
            rows = [row.strip("|").split("|") for row in block.splitlines()]
            cells = [[cell.strip() for cell in row] for row in rows]
            lines += table("auto", [cells[0], *cells[2:]])
        elif block.startswith("!["):
            for title, name in re.findall(r"!\[(.*?)\]\((.*?)\)", block):
                lines += [f".. figure:: /{folder}/{name}", f"   :alt: {title}"]
                lines += ["", f"   {title}", ""]
        else:
            text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", block).splitlines()
            lines += text if len(text) == 1 else [f"* {line}" for line in text]
        lines.append("")
    return lines


def setup(app) -> dict[str, bool]:
    """Registers the directive with Sphinx."""
    app.add_directive("paper-tables", PaperTables)
    return {"parallel_read_safe": True}
