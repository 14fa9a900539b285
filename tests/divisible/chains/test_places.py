"""The line of a user's code that made a call."""

import linecache

import pytest

from divisible.chains.places import Place, here, raised_at


def root(function):
    return function()


class Net:
    def forward(self):
        return here(root.__code__)


def test_the_innermost_line_of_a_user_is_found():
    place = root(Net().forward)
    line = linecache.getline(__file__, place.line).strip()
    assert line == "return here(root.__code__)"
    assert str(place) == f"line {place.line} of test_places.py, in Net.forward: {line}"


def test_no_line_outside_of_the_forward_is_searched():
    assert here(test_no_line_outside_of_the_forward_is_searched.__code__) is None


def test_the_line_that_raised():
    with pytest.raises(ZeroDivisionError) as caught:
        Net.quotient = 1 / 0
    assert "1 / 0" in str(raised_at(caught.value.__traceback__))


def test_a_long_line_is_cut(tmp_path):
    path = tmp_path / "net.py"
    path.write_text("x = " + "1 + " * 100 + "1\n")
    text = str(Place(str(path), 1, "f"))
    assert text.startswith("line 1 of net.py, in f: x = 1") and len(text) < 130
