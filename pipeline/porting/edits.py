"""Edits of a text: stretches of it, and what stands there instead."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.porting.script import Script


class Edit(NamedTuple):
    """One stretch of a text and its replacement.

    Attributes:
        start: First byte of the stretch.
        end: First byte behind it; equal to ``start`` for an insertion.
        text: The replacement.
    """

    start: int
    end: int
    text: str


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Returns a text after all edits; an edit within a larger one is left out.

    Example:
        >>> apply('a = f(x)', [Edit(4, 5, 'g'), Edit(6, 7, 'y')])
        'a = g(y)'
    """
    whole, parts, position = text.encode(), [], 0
    for edit in sorted(dict.fromkeys(edits), key=_order):
        if edit.start < position:
            continue
        parts += [whole[position : edit.start], edit.text.encode()]
        position = edit.end
    return b"".join([*parts, whole[position:]]).decode()


def replacement(script: Script, node: ast.AST, text: str) -> Edit:
    """Returns the edit that puts a text in place of a node."""
    return Edit(*script.span(node), text)


def insertion(script: Script, before: ast.stmt, text: str) -> Edit:
    """Returns the edit that puts lines before a statement, with its indentation."""
    decorators = [each.lineno for each in getattr(before, "decorator_list", [])]
    line = min([before.lineno, *decorators])
    start, _ = script.lines(line, line)
    lines = textwrap.indent(textwrap.dedent(text), script.indentation(before))
    return Edit(start, start, lines)


def removal(script: Script, statement: ast.stmt) -> Edit:
    """Returns the edit that removes a statement, and lines that have no other."""
    if not script.is_alone(statement):
        return replacement(script, statement, "pass")
    return Edit(*script.lines(statement.lineno, statement.end_lineno), "")


def unwrapping(
    script: Script, block: Sequence[ast.stmt], outer: ast.stmt
) -> list[Edit]:
    r"""Returns the edits that leave a block of a compound statement, and not the rest.

    Example:
        >>> script = Script('if a:\n    b = 1\nelse:\n    b = 2\n')
        >>> outer = script.tree.body[0]
        >>> apply(script.text, unwrapping(script, outer.body, outer))
        'b = 1\n'
    """
    first, last = block[0].lineno, block[-1].end_lineno
    whole = script.lines(outer.lineno, outer.end_lineno)
    kept = script.lines(first, last)
    if first == outer.lineno:
        header = Edit(script.span(outer)[0], script.span(block[0])[0], "")
        return [header, Edit(kept[1], whole[1], "")]
    edits = [Edit(whole[0], kept[0], ""), Edit(kept[1], whole[1], "")]
    inner, before = script.indentation(block[0]), script.indentation(outer)
    return edits + shifted(script, first, last, inner, before)


def shifted(script: Script, first: int, last: int, old: str, new: str) -> list[Edit]:
    """Returns the edits that change the indentation of lines, not within texts."""
    inside = _lines_in_texts(script.tree)
    edits = []
    for line in range(first, last + 1):
        start, end = script.lines(line, line)
        if line not in inside and script.between(start, end).startswith(old):
            edits.append(Edit(start, start + len(old.encode()), new))
    return edits


def with_pass(script: Script, edits: Sequence[Edit]) -> list[Edit]:
    """Returns the edits, with ``pass`` in each block of which they leave nothing."""
    edits = list(edits)
    for node in ast.walk(script.tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list) or not block or not hasattr(node, "lineno"):
                continue
            found = [_removed_by(edits, script.span(each)) for each in block]
            begin, _ = script.lines(block[0].lineno, block[0].lineno)
            # An edit that begins before removes the header of the block as well.
            if all(found) and found[0].start == begin:
                first = found[0]
                line = f"{script.indentation(block[0])}pass\n"
                edits[edits.index(first)] = first._replace(text=line)
    return edits


def _removed_by(edits: Iterable[Edit], span: tuple[int, int]) -> Edit | None:
    for edit in edits:
        if not edit.text and edit.start <= span[0] and span[1] <= edit.end:
            return edit
    return None


def _order(edit: Edit) -> tuple[int, bool, int]:
    """Insertions come first, then the longest edit at a place."""
    return edit.start, edit.end > edit.start, -edit.end


def _lines_in_texts(tree: ast.Module) -> set[int]:
    """Returns the lines that begin within a text of several lines."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text or isinstance(node, ast.JoinedStr):
            inside.update(range(node.lineno + 1, node.end_lineno + 1))
    return inside
