"""A small minibatch, for ``from_chain``, out of what a loop gives the model."""

from __future__ import annotations

import ast
from typing import Any

from pipeline.porting.parts import Parts
from pipeline.porting.script import Script, is_name, walk_scope

_READS = ("next", "__next__")


def example_of(script: Script, parts: Parts, node: ast.expr) -> str:
    """Returns the source of two samples of an input.

    Args:
        script: The script.
        parts: Its parts.
        node: Expression of the input of a minibatch.

    Returns:
        str: Nothing if the array that the samples are parts of is not found.
    """
    node = _without_variable(script, node)
    if isinstance(node, ast.Name):
        assign = _last_before(node, _assignments(script, parts, node.id))
        if assign is None:
            is_array = _is_made_before(script, parts, node.id)
            is_changed = _is_stored(parts.place, node.id)
            return f"{node.id}[:2]" if is_array and not is_changed else ""
        if isinstance(assign.targets[0], ast.Tuple):
            return _of_tuple(script, parts, assign, node.id)
        return example_of(script, parts, assign.value)
    for part in ast.walk(node):
        is_part = isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name)
        if is_part and _is_whole(script, parts, part.value.id):
            start, end = script.span(part)
            whole = script.span(node)
            name = part.value.id
            before = script.between(whole[0], start)
            index = ":2"
            if not isinstance(part.slice, ast.Slice) and _is_subscripted(script, part):
                # A TupleDataset gives a list for a slice, and arrays for an array.
                index = "numpy.arange(2)"
                parts.imports.add("numpy")
            return f"{before}{name}[{index}]{script.between(end, whole[1])}"
    return ""


def _is_subscripted(script: Script, node: ast.expr) -> bool:
    above = script.parent(node)
    return isinstance(above, ast.Subscript) and above.value is node


def _without_variable(script: Script, node: ast.expr) -> ast.expr:
    is_call = isinstance(node, ast.Call) and node.args
    if is_call and script.is_chainers(node.func, "Variable", "as_variable"):
        return node.args[0]
    return node


def _assignments(script: Script, parts: Parts, name: str) -> list[ast.Assign]:
    """Returns the assignments of a variable, alone or in a tuple, behind the place."""
    return [
        node
        for node in ast.walk(parts.place)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(each, ast.Name) and each.id == name
            for target in node.targets
            for each in ast.walk(target)
        )
    ]


def _last_before(node: ast.AST, statements: list[ast.stmt]) -> Any:
    """Returns the last of the statements that begins on a line before a node."""
    before = [each for each in statements if each.lineno < node.lineno]
    return max(before, key=lambda each: each.lineno, default=None)


def _is_whole(script: Script, parts: Parts, name: str) -> bool:
    """Returns whether a variable is there before the loop, or is not made in it."""
    is_made = _is_made_before(script, parts, name)
    return is_made or not _assignments(script, parts, name)


def _is_made_before(script: Script, parts: Parts, name: str) -> bool:
    """Returns whether the scope assigns a variable before the loop."""
    return any(
        is_name(node, name)
        and isinstance(node.ctx, ast.Store)
        and node.lineno < parts.place.lineno
        for node in walk_scope(parts.scope)
    )


def _is_stored(node: ast.AST, name: str) -> bool:
    """Returns whether code stores a variable."""
    return any(
        is_name(each, name) and isinstance(each.ctx, ast.Store)
        for each in ast.walk(node)
    )


def _of_tuple(script: Script, parts: Parts, assign: ast.Assign, name: str) -> str:
    """Returns an example of one array of ``x, t = concat_examples(batch)``."""
    value, target = assign.value, assign.targets[0]
    names = [script.source(each) for each in target.elts]
    if isinstance(value, ast.Tuple) and len(value.elts) == len(names):
        return example_of(script, parts, value.elts[names.index(name)])
    if not isinstance(value, ast.Call) or not value.args:
        return ""
    batch = value.args[0]
    iterator = _iterator(script, parts, batch)
    if not iterator:
        return ""
    start, end = script.span(batch)
    whole = script.span(value)
    call = (
        script.between(whole[0], start)
        + f"{iterator}.dataset[:2]"
        + script.between(end, whole[1])
    )
    return f"{call}[{names.index(name)}]"


def _iterator(script: Script, parts: Parts, batch: ast.expr) -> str:
    """Returns the variable of the iterator that a batch comes from."""
    if isinstance(batch, ast.Name):
        loops = [
            node
            for node in ast.walk(parts.place)
            if isinstance(node, ast.For) and is_name(node.target, batch.id)
        ]
        found = _last_before(batch, [*loops, *_assignments(script, parts, batch.id)])
        if isinstance(found, ast.For):
            return found.iter.id if isinstance(found.iter, ast.Name) else ""
        return _iterator(script, parts, found.value) if found is not None else ""
    if not isinstance(batch, ast.Call):
        return ""
    func = batch.func
    if isinstance(func, ast.Attribute) and func.attr in _READS:
        return script.source(func.value)
    if isinstance(func, ast.Name) and func.id == "next" and batch.args:
        return script.source(batch.args[0])
    return ""
