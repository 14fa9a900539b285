"""What a terminal shows after all that was printed."""

import re

_PART = re.compile(r"\x1b\[(\d*)([AJ])|\n|\r|[^\x1b\n\r]+")


def screen(text: str) -> list[str]:
    """Returns the lines of a terminal that knows what Chainer's progress bar needs.

    Args:
        text: All that was printed: characters, ends of lines, ``ESC [ n A``, which goes
            up, and ``ESC [ J``, which erases what follows the cursor.
    """
    lines, row, column = [""], 0, 0
    for part in _PART.finditer(text):
        number, kind = part.groups()
        if kind == "J":
            lines = [*lines[:row], lines[row][:column]]
        elif kind == "A":
            row -= int(number or 1)
        elif part[0] == "\r":
            column = 0
        elif part[0] == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        else:
            line = lines[row].ljust(column)
            column, begin = column + len(part[0]), line[:column]
            lines[row] = begin + part[0] + line[column:]
    return lines
