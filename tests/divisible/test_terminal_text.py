"""No character of a printed text controls the terminal."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.terminal_text import printable


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0F0>1", "0F0>1"),
        # Letters, wide spaces and symbols of any script stay.
        ("層\u3000größe\u00a0🚀", "層\u3000größe\u00a0🚀"),
        # The title of the window, and a clear screen.
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        # The same in one byte, in place of two.
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\tc\x7f\n", r"a\rb\tc\x7f\n"),
        # What follows is written from the right to the left.
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2028", r"\u2028"),
        ("\udc9b", r"\udc9b"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_controls_a_terminal_is_escaped(text, expected):
    assert printable(text) == expected


def test_lines_may_stay():
    assert printable("a\n\x1bb\r\n", keeps_lines=True) == "a\n\\x1bb\\r\n"


def test_every_character():
    for code in range(sys.maxunicode + 1):
        shown = printable(chr(code))
        is_safe = unicodedata.category(chr(code)) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        assert (shown == chr(code)) == is_safe
        assert shown.isascii() or is_safe


@given(st.text(st.characters()))
def test_nothing_is_escaped_twice(text):
    assert printable(printable(text)) == printable(text)
