"""Tables of text, in lines whose columns stand below each other."""

from __future__ import annotations

from collections.abc import Container, Sequence


def text_table(rows: Sequence[Sequence[str]], left: Container[int] = ()) -> str:
    """Returns rows as lines, each column as wide as its longest text.

    Args:
        rows: Texts, of equally many columns; titles are the first row.
        left: The positions of the columns whose texts stand at the left. Others, such
            as numbers, stand at the right.

    Example:
        >>> print(text_table([("layer", "n"), ("/0", "7"), ("/1/W", "12")], left=(0,)))
        layer   n
        /0      7
        /1/W   12
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )
