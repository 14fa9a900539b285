"""Statements of a method: what they read and store, and their lines."""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Iterator, Sequence

from pipeline.porting.edits import Edit, apply
from pipeline.porting.script import Script, is_name


def lines_of(
    script: Script, statements: list[ast.stmt], before: str, edits: Sequence[Edit] = ()
) -> str:
    """Returns the lines of statements after edits, with another indentation."""
    text = ""
    for each in statements:
        start, end = script.lines(each.lineno, each.end_lineno)
        own = [
            edit._replace(start=edit.start - start, end=edit.end - start)
            for edit in edits
            if start <= edit.start and edit.end <= end
        ]
        lines = textwrap.dedent(apply(script.between(start, end), own))
        text += textwrap.indent(lines, before)
    return text if text.endswith("\n") else f"{text}\n"


def is_text(statement: ast.stmt) -> bool:
    """Returns whether a statement is a text, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def reads(node: ast.AST, name: str) -> bool:
    """Returns whether code reads a variable."""
    return any(
        isinstance(each, ast.Name)
        and each.id == name
        and isinstance(each.ctx, ast.Load)
        for each in ast.walk(node)
    )


def reports(statement: ast.stmt) -> bool:
    """Returns whether a statement reports values to the reporter."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    func = call.func if isinstance(call, ast.Call) else None
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name == "report"


def attributes_stored(statements: list[ast.stmt], self: str) -> set[str]:
    """Returns the attributes of the chain that statements set."""
    return {
        target.attr
        for each in statements
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Attribute) and is_name(target.value, self)
    }


def needs(script: Script, statement: ast.stmt, self: str, known: set[str]) -> bool:
    """Returns whether a statement needs more of the chain than known attributes."""
    for use in script.uses(self, statement):
        parent = script.parent(use)
        if reports(script.statement(use)):
            continue
        if not isinstance(parent, ast.Attribute) or parent.attr not in known:
            return True
        above = script.parent(parent)
        if isinstance(above, ast.Call) and above.func is parent:
            return True
    return False


def assigns_only(script: Script, statement: ast.stmt, name: str) -> bool:
    """Returns whether a statement assigns a variable or an attribute, and no other."""
    return (
        bool(name)
        and isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and script.source(statement.targets[0]) == name
    )


def stores(statements: list[ast.stmt], name: str) -> bool:
    """Returns whether statements store a variable."""
    return name in names_stored(statements)


def names_stored(statements: list[ast.stmt]) -> set[str]:
    """Returns the variables that statements store."""
    return {
        node.id
        for each in statements
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def names_in(node: ast.AST) -> set[str]:
    """Returns the variables that code reads or stores."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def constants(statements: Sequence[ast.stmt], own: Sequence[str]) -> list[ast.stmt]:
    """Returns the statements whose values depend on no other of them.

    Such are the beginnings of sums, as ``loss = 0``, and the weights of classes. No
    other of the statements has their variables.

    Args:
        statements: Statements of a function.
        own: Arguments of the function.
    """
    found = []
    for each in statements:
        others = [other for other in statements if other is not each]
        names = set().union(own, *map(names_in, others))
        is_plain = isinstance(each, ast.Assign) and all(
            isinstance(target, ast.Name) for target in each.targets
        )
        if is_plain and names_stored([each]).isdisjoint(names):
            stored = {*own, *names_stored(statements)}
            if names_in(each.value).isdisjoint(stored):
                found.append(each)
    return found


def makes_number(statement: ast.stmt) -> bool:
    """Returns whether a statement assigns a number, or a shape, and no array.

    Example:
        >>> [makes_number(s) for s in ast.parse('n = len(x); m = x.shape[0]').body]
        [True, True]
    """
    value = statement.value if isinstance(statement, ast.Assign) else None
    while isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.Attribute):
        return value.attr in ("shape", "size", "ndim", "dtype")
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    is_number = is_call and value.func.id in ("len", "int", "float", "bool")
    return is_number or isinstance(value, ast.Constant)


def surely_stored(statements: list[ast.stmt]) -> set[str]:
    """Returns the variables that statements store on each path."""
    found: set[str] = set()
    for each in statements:
        if isinstance(each, ast.If):
            found |= surely_stored(each.body) & surely_stored(each.orelse)
        elif isinstance(each, (ast.With, ast.Try)):
            found |= surely_stored(each.body)
        elif not isinstance(each, (ast.For, ast.While)):
            found |= names_stored([each])
    return found


def names_read(statements: list[ast.stmt]) -> list[str]:
    """Returns the variables that statements read before they store them, in order."""
    found: dict[str, None] = {}
    stored: set[str] = set()
    for each in statements:
        for node in ast.walk(each):
            # The syntax tree has the variable of ``loss += y`` as one that is stored.
            is_changed = isinstance(node, ast.AugAssign)
            name = node.target if is_changed else node
            is_read = isinstance(name, ast.Name) and (
                is_changed or isinstance(name.ctx, ast.Load)
            )
            if is_read and name.id not in stored:
                found.setdefault(name.id)
        stored |= names_stored([each])
    return list(found)


def outer_names(statements: Sequence[ast.stmt], own: Sequence[str]) -> list[str]:
    """Returns the variables of a module that statements read, in order.

    Statements that report values are left out.

    Args:
        statements: Statements of a function.
        own: Arguments of the function.

    Example:
        >>> outer_names(ast.parse('y = F.relu(x)').body, ['x'])
        ['F']
    """
    known, read = {*own, *dir(builtins)}, {}
    for node in (node for each in statements for node in _walk(each)):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.setdefault(node.id)
            else:
                known.add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    return [name for name in read if name not in known]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a statement, without statements that report values."""
    if isinstance(node, ast.stmt) and reports(node):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)
