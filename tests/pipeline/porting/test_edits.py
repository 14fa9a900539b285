"""Edits change what they name, and leave valid blocks and texts."""

import ast

from hypothesis import given
from hypothesis import strategies as st

from pipeline.porting.edits import (
    Edit,
    apply,
    insertion,
    removal,
    shifted,
    unwrapping,
    with_pass,
)
from pipeline.porting.script import Script

TEXT = '''if a:
    b = """one
two"""
    # kept
    c = (1,
         2)
else:
    d = None
'''


@given(st.text(), st.data())
def test_an_edit_changes_its_stretch_only(text, data):
    size = len(text)
    start = data.draw(st.integers(0, size))
    end = data.draw(st.integers(start, size))
    first, last = (len(text[:n].encode()) for n in (start, end))
    new = data.draw(st.text())
    edits = [Edit(first, last, new)]
    assert apply(text, edits) == text[:start] + new + text[end:]


def test_a_block_is_left_without_the_statement_around_it():
    script = Script(TEXT)
    outer = script.tree.body[0]
    expected = 'b = """one\ntwo"""\n# kept\nc = (1,\n     2)\n'
    assert apply(TEXT, unwrapping(script, outer.body, outer)) == expected


def test_a_block_on_the_line_of_its_statement_is_left():
    script = Script("if a: b = 1; c = 2\nelse: b = None\nd = 3\n")
    outer = script.tree.body[0]
    text = apply(script.text, unwrapping(script, outer.body, outer))
    assert text == "b = 1; c = 2\nd = 3\n"


def test_lines_of_texts_are_not_indented():
    script = Script(TEXT)
    edits = shifted(script, 2, 6, "    ", "        ")
    text = apply(TEXT, edits)
    assert "\ntwo" in text and "        c = (1,\n             2)" in text
    assert ast.literal_eval(Script(text).tree.body[0].body[0].value) == "one\ntwo"


def test_a_block_of_which_nothing_is_left_passes():
    script = Script("if a:\n    b()\n    c()\nelse:\n    d()\n")
    outer = script.tree.body[0]
    edits = [removal(script, each) for each in outer.body]
    text = apply(script.text, with_pass(script, edits))
    assert text == "if a:\n    pass\nelse:\n    d()\n"


def test_lines_go_before_decorators():
    script = Script("@f\ndef g():\n    return 1\n")
    edit = insertion(script, script.tree.body[0], "x = 1\n")
    assert apply(script.text, [edit]) == "x = 1\n@f\ndef g():\n    return 1\n"


def test_a_statement_among_others_on_a_line_passes():
    script = Script("a = 1; b()\n")
    assert apply(script.text, [removal(script, script.tree.body[1])]) == "a = 1; pass\n"
