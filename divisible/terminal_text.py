"""Text from files, made safe for a terminal."""

from __future__ import annotations

import unicodedata

# Control characters, invisible ones such as changes of the direction of writing, halves
# of surrogate pairs, and the separators of lines and paragraphs.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, keeps_lines: bool = False) -> str:
    r"""Returns text without any character that controls a terminal.

    A name in a file may hold escape sequences, which move the cursor, change the
    window's title or hide what follows. Each such character becomes its escape in the
    notation of Python.

    Args:
        text (str): The text, from a file or another process.
        keeps_lines (bool): Whether line ends stay.

    Returns:
        str: The text itself, if it has no such character.

    Example:
        >>> print(printable("layer 3\x1b[2J\n"))
        layer 3\x1b[2J\n
        >>> printable("a\nb", keeps_lines=True)
        'a\nb'
    """
    # Nearly all texts are printable, which is checked quickly.
    if text.isprintable():
        return text
    return "".join(
        _escaped(character)
        if unicodedata.category(character) in _UNSAFE
        and not (keeps_lines and character == "\n")
        else character
        for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
