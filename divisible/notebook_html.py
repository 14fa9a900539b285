"""HTML by which notebooks show objects: lines of text, and tables."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import NamedTuple, Union

from chainer_kernels.text_table import text_table
from divisible.terminal_text import printable


class Rows(NamedTuple):
    """A table in a text.

    Attributes:
        rows: Texts, of equally many columns; titles are the first row.
        left: Positions of the columns whose texts stand at the left.
    """

    rows: Sequence[Sequence[str]]
    left: Container[int] = ()


#: A line of text, or a table.
Part = Union[str, Rows]


def as_text(parts: Iterable[Part]) -> str:
    """Returns lines and tables as text for a terminal.

    Example:
        >>> print(as_text(["2 stages", Rows([("stage", "s"), ("0", "1.5")])]))
        2 stages
        stage    s
            0  1.5
    """
    lines = [part if isinstance(part, str) else text_table(*part) for part in parts]
    return printable("\n".join(lines), keeps_lines=True)


def as_html(parts: Iterable[Part]) -> str:
    """Returns lines and tables as HTML; all texts are escaped.

    Example:
        >>> as_html(["a < b"])
        '<div>a &lt; b</div>'
    """
    return "".join(
        f"<div>{escape(printable(part))}</div>"
        if isinstance(part, str)
        else _html_table(part)
        for part in parts
    )


def _html_table(table: Rows) -> str:
    def row(texts: Sequence[str], tag: str) -> str:
        cells = (
            f'<{tag} style="text-align: {"left" if i in table.left else "right"}">'
            f"{escape(printable(text))}</{tag}>"
            for i, text in enumerate(texts)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head, *body = table.rows
    rows = "".join(row(texts, "td") for texts in body)
    return f"<table><thead>{row(head, 'th')}</thead><tbody>{rows}</tbody></table>"
